"""Faults of tensor parallelism on torch_native: what hooks do pass after pass, what is sent, and random numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from hyper_parallel_tests.faults import Patch, fault

_STYLE = "torch.distributed.tensor.parallel.style"
_RNG = "hyper_parallel_tests.engines.torch_native.rng"
_INPUT = ("input_layouts", "desired_input_layouts", "mod", "inputs", "device_mesh")
_OUTPUT = ("output_layouts", "use_local_output", "mod", "outputs", "device_mesh")


@fault(
    id="tp-input-of-the-first-pass-kept",
    symptom="The loss stands still after the first step: each pass computes with the first one's input.",
    capability="tensor_parallel",
    layer="l1",
    must_fail=["TP-1-01"],
    ranks="all",
)
def input_of_the_first_pass_kept(patch: Patch) -> None:
    @patch.around(f"{_STYLE}:ColwiseParallel._prepare_input_fn", parameters=_INPUT)
    def prepare(original: Any, layouts: Any, desired: Any, mod: Any, inputs: Any, mesh: Any) -> Any:
        kept = mod.__dict__.setdefault("_first_input", inputs)
        if kept is not inputs:
            patch.reached()
        return original(layouts, desired, mod, kept, mesh)


@fault(
    id="tp-no-reduction-without-gradients",
    symptom="The training loss is right, the validation loss is not, and it differs by rank.",
    capability="tensor_parallel",
    layer="l1",
    must_fail=["TP-1-01"],
    ranks="all",
)
def no_reduction_without_gradients(patch: Patch) -> None:
    @patch.around(f"{_STYLE}:RowwiseParallel._prepare_output_fn", parameters=_OUTPUT)
    def prepare(original: Any, layouts: Any, use_local_output: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        if not torch.is_grad_enabled() and layouts == (Replicate(),):
            patch.reached()
            return outputs.to_local()
        return original(layouts, use_local_output, mod, outputs, mesh)


@fault(
    id="tp-input-gradient-of-own-columns",
    symptom="The last layer learns, those before it learn another thing on each rank and drift apart.",
    capability="tensor_parallel",
    layer="l1",
    must_fail=["TP-1-01", "TP-1-02"],
    ranks="all",
)
def input_gradient_of_own_columns(patch: Patch) -> None:
    @patch.around(f"{_STYLE}:ColwiseParallel._prepare_input_fn", parameters=_INPUT)
    def prepare(original: Any, layouts: Any, desired: Any, mod: Any, inputs: Any, mesh: Any) -> Any:
        if isinstance(inputs[0], DTensor) or layouts != (Replicate(),):
            return original(layouts, desired, mod, inputs, mesh)
        patch.reached()
        return DTensor.from_local(inputs[0], mesh, [Replicate()], grad_placements=[Partial()])


@fault(
    id="tp-reduced-in-two-steps",
    symptom="The loss is right and the step slower: each block's output is scattered and gathered instead of reduced.",
    capability="tensor_parallel",
    layer="l1",
    must_fail=["TP-1-02"],
    ranks="all",
)
def reduced_in_two_steps(patch: Patch) -> None:
    @patch.around(f"{_STYLE}:RowwiseParallel._prepare_output_fn", parameters=_OUTPUT)
    def prepare(original: Any, layouts: Any, use_local_output: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        if layouts == (Replicate(),) and outputs.placements[0].is_partial():
            patch.reached()
            outputs = outputs.redistribute(placements=[Shard(outputs.ndim - 1)])
        return original(layouts, use_local_output, mod, outputs, mesh)


@fault(
    id="tp-own-tokens-cut-from-the-whole",
    symptom="Sequence parallelism saves no memory at its peak: each block's output is whole before it is cut.",
    capability="tensor_parallel",
    layer="l1",
    must_fail=["TP-1-02"],
    ranks="all",
)
def own_tokens_cut_from_the_whole(patch: Patch) -> None:
    @patch.around(f"{_STYLE}:RowwiseParallel._prepare_output_fn", parameters=_OUTPUT)
    def prepare(original: Any, layouts: Any, use_local_output: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        if layouts == (Shard(1),):
            patch.reached()
            outputs = outputs.redistribute(placements=[Replicate()])
        return original(layouts, use_local_output, mod, outputs, mesh)


@fault(
    id="tp-seed-alike-on-all-ranks",
    symptom="Dropout inside a block drops the same heads and columns of each rank: less than on one card.",
    capability="tensor_parallel",
    layer="l1",
    must_fail=["TP-1-03"],
    ranks="all",
)
def seed_alike_on_all_ranks(patch: Patch) -> None:
    @patch.around(f"{_RNG}:parallel_seed", parameters=("seed", "device_mesh", "distinct_dims"))
    def seeded(original: Any, seed: int, device_mesh: Any, distinct_dims: Any = ("pp",)) -> int:
        patch.reached()
        return original(seed, device_mesh, [name for name in distinct_dims if name != "tp"])


@fault(
    id="tp-replicas-seeded-apart",
    symptom="Replicated activations differ by rank after dropout, and the parameters of norms drift apart.",
    capability="tensor_parallel",
    layer="l1",
    must_fail=["TP-1-03"],
    ranks="any",
)
def replicas_seeded_apart(patch: Patch) -> None:
    @patch.around(f"{_RNG}:manual_seed", parameters=("seed", "device_mesh"))
    def seeded(original: Any, seed: int, device_mesh: Any) -> None:
        patch.reached()
        original(seed, device_mesh)
        torch.manual_seed(seed + device_mesh.get_local_rank(0))


@fault(
    id="tp-parts-dropped-alike",
    symptom="A divided activation has the same mask on each rank, and not the single card's.",
    capability="tensor_parallel",
    layer="l1",
    must_fail=["TP-1-03"],
    ranks="all",
)
def parts_dropped_alike(patch: Patch) -> None:
    @patch.around(f"{_RNG}:distributed_dropout", parameters=("tensor", "p", "training"))
    def dropout(_: Any, tensor: Any, p: float = 0.5, training: bool = True) -> Any:
        patch.reached()
        return DTensor.from_local(F.dropout(tensor.to_local(), p, training), tensor.device_mesh, tensor.placements)
