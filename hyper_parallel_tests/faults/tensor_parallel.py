"""Faults of tensor parallelism on torch_native: how a plan is read, and how parameters and activations are placed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from hyper_parallel_tests.faults import Patch, fault

_API = "torch.distributed.tensor.parallel.api"
_STYLE = "torch.distributed.tensor.parallel.style"
_OURS = "hyper_parallel_tests.engines.torch_native.tensor_parallel"


@fault(
    id="tp-column-bias-left-whole",
    symptom="With biases on a rank's memory is more than its share, and checkpoints hold biases of another layout.",
    capability="tensor_parallel",
    layer="l0",
    must_fail=["TP-0-01"],
)
def column_bias_left_whole(patch: Patch) -> None:
    @patch.around(
        f"{_STYLE}:ColwiseParallel._partition_linear_fn", parameters=("self", "name", "module", "device_mesh")
    )
    def partition(original: Any, self: Any, name: str, module: nn.Linear, mesh: Any) -> None:
        bias = module.bias
        original(self, name, module, mesh)
        if bias is not None:
            patch.reached()
            module.bias = nn.Parameter(distribute_tensor(bias.detach(), mesh, [Replicate()]))


@fault(
    id="tp-output-layout-ignored",
    symptom="A layer asked for a rank's tokens hands out all of them, and the next norm works on the whole sequence.",
    capability="tensor_parallel",
    layer="l0",
    must_fail=["TP-0-01"],
)
def output_layout_ignored(patch: Patch) -> None:
    @patch.around(
        f"{_STYLE}:RowwiseParallel._prepare_output_fn",
        parameters=("output_layouts", "use_local_output", "mod", "outputs", "device_mesh"),
    )
    def output(original: Any, layouts: Any, use_local_output: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        if layouts == (Shard(1),):
            patch.reached()
        return original((Replicate(),), use_local_output, mod, outputs, mesh)


@fault(
    id="tp-only-first-match",
    symptom="A plan with a wildcard divides the first block; the others run whole on every rank.",
    capability="tensor_parallel",
    layer="l0",
    must_fail=["TP-0-02"],
)
def only_first_match(patch: Patch) -> None:
    @patch.around(f"{_API}:fnmatch")
    def match(original: Any, name: str, pattern: str) -> bool:
        found = original(name, pattern)
        if not found or pattern != "*":
            return found
        if name not in ("0", "blocks", "first"):
            patch.reached()
            return False
        return True


@fault(
    id="tp-unmatched-path-is-silent",
    symptom="After a layer was renamed it is not divided any more, and nothing says so.",
    capability="tensor_parallel",
    layer="l0",
    must_fail=["TP-0-02"],
)
def unmatched_path_is_silent(patch: Patch) -> None:
    def warn(message: str, *args: Any, **kwargs: Any) -> None:
        patch.reached()

    patch.replace(f"{_API}:warnings", lambda _: SimpleNamespace(**{**vars(warnings), "warn": warn}))


@fault(
    id="tp-key-value-heads-not-checked",
    symptom="With fewer key-value heads than ranks the model ends in an error about sizes in its first step.",
    capability="tensor_parallel",
    layer="l0",
    must_fail=["TP-0-03"],
)
def key_value_heads_not_checked(patch: Patch) -> None:
    @patch.around(f"{_OURS}:attention_heads_per_rank", parameters=("heads", "kv_heads", "tp_size"))
    def per_rank(original: Any, heads: int, kv_heads: int, tp_size: int) -> tuple[int, int]:
        if kv_heads % tp_size and not heads % tp_size:
            patch.reached()
            return heads // tp_size, max(1, kv_heads // tp_size)
        return original(heads, kv_heads, tp_size)


@fault(
    id="tp-last-tokens-of-the-vocabulary-dropped",
    symptom="The last tokens of a vocabulary that ranks do not divide have no vector.",
    capability="tensor_parallel",
    layer="l0",
    must_fail=["TP-0-03"],
)
def last_tokens_of_the_vocabulary_dropped(patch: Patch) -> None:
    @patch.around(f"{_STYLE}:distribute_tensor")
    def distribute(original: Any, tensor: Any, mesh: Any, placements: Any, **options: Any) -> Any:
        left_over = tensor.shape[0] % mesh.size()
        if left_over and placements == [Shard(0)]:
            patch.reached()
            tensor = nn.Parameter(tensor.detach()[: tensor.shape[0] - left_over])
        return original(tensor, mesh, placements, **options)
