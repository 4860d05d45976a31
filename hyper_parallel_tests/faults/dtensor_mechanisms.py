"""Faults of operations, gradients, hooks and states of distributed tensors: what layer 1 of dtensor must catch."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native"
_API = "torch.distributed.tensor._api"
_MODULE = "torch.nn.modules.module:Module"


@fault(
    id="dt-plain-tensor-taken-for-replicated",
    symptom="A plain tensor that differs from rank to rank slips into a distributed model, and replicas drift apart.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-01"],
    ranks="all",
)
def plain_tensor_taken_for_replicated(patch: Patch) -> None:
    @patch.around("torch:Tensor.add_")
    def add(original: Any, self: Any, other: Any, **options: Any) -> Any:
        if isinstance(self, DTensor) and isinstance(other, torch.Tensor) and not isinstance(other, DTensor):
            patch.reached()
            other = DTensor.from_local(other, self.device_mesh, [Replicate()] * self.device_mesh.ndim)
        return original(self, other, **options)


@fault(
    id="dt-mean-of-parts-taken-for-a-sum",
    symptom="A loss is larger by the number of ranks: the mean over the parts is summed.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-01"],
    ranks="all",
)
def mean_of_parts_taken_for_a_sum(patch: Patch) -> None:
    @patch.around("torch:Tensor.mean")
    def mean(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if isinstance(found, DTensor) and any(one.is_partial("avg") for one in found.placements):
            patch.reached()
            return DTensor.from_local(found.to_local(), found.device_mesh, [_summed(one) for one in found.placements])
        return found


def _summed(placement: Any) -> Any:
    return Partial("sum") if placement.is_partial() else placement


@fault(
    id="dt-gradient-of-a-term-is-a-share",
    symptom="Row-parallel layers learn more slowly, by the number of ranks.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-02"],
    ranks="all",
)
def gradient_of_a_term_is_a_share(patch: Patch) -> None:
    @patch.around(f"{_API}:_FromTorchTensor.backward", parameters=("ctx", "grad_output"))
    def backward(original: Any, ctx: Any, grad_output: Any) -> Any:
        grad, *others = original(ctx, grad_output)
        if grad is not None and any(one.is_partial() for one in ctx.forward_input_placements):
            patch.reached()
            grad = grad / ctx.forward_input_device_mesh.size()
        return grad, *others


@fault(
    id="dt-detached-tensor-is-a-copy",
    symptom="Changes under no_grad through detached parameters, as in an EMA or an initialization, are lost.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-02"],
    ranks="all",
)
def detached_tensor_is_a_copy(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor:DTensor.detach")
    def detach(original: Any, self: Any) -> Any:
        if isinstance(self, DTensor):
            patch.reached()
            return original(self).clone()
        return original(self)


@fault(
    id="dt-local-part-costs-a-gather",
    symptom="Reading a shard's size or value gathers the whole tensor: training is slow and memory peaks.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-03"],
    ranks="all",
)
def local_part_costs_a_gather(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor:DTensor.to_local")
    def to_local(original: Any, self: Any, **options: Any) -> Any:
        if any(one.is_shard() for one in self.placements):
            patch.reached()
            self.full_tensor()
        return original(self, **options)


@fault(
    id="dt-output-function-dropped",
    symptom="A distributed module hands its shard to the plain module behind it.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-04"],
    ranks="all",
)
def output_function_dropped(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:distribute_module", parameters=("module", "device_mesh", "partition_fn"))
    def distribute_module(
        original: Any,
        module: Any,
        device_mesh: Any,
        partition_fn: Any = None,
        input_fn: Any = None,
        output_fn: Any = None,
    ) -> Any:
        if output_fn is not None:
            patch.reached()
        return original(module, device_mesh, partition_fn, input_fn, None)


@fault(
    id="dt-functions-run-in-forward-itself",
    symptom="A framework that calls forward directly has its inputs distributed twice.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-04"],
    ranks="all",
)
def functions_run_in_forward_itself(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:distribute_module", parameters=("module", "device_mesh", "partition_fn"))
    def distribute_module(
        original: Any,
        module: Any,
        device_mesh: Any,
        partition_fn: Any = None,
        input_fn: Any = None,
        output_fn: Any = None,
    ) -> Any:
        found = original(module, device_mesh, partition_fn)
        if input_fn is None:
            return found
        forward = found.forward

        def wrapped(*inputs: Any) -> Any:
            patch.reached()
            inputs = tuple(one for one in inputs if isinstance(one, DTensor)) or input_fn(found, inputs, device_mesh)
            return output_fn(found, forward(*inputs), device_mesh)

        found.forward = wrapped
        return found


@fault(
    id="dt-state-dict-of-parts",
    symptom="A checkpoint holds each rank's part under the full name, and loads on no other number of ranks.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-05"],
    ranks="all",
)
def state_dict_of_parts(patch: Patch) -> None:
    @patch.around(f"{_MODULE}._save_to_state_dict", parameters=("self", "destination", "prefix", "keep_vars"))
    def save(original: Any, self: Any, destination: Any, prefix: str, keep_vars: bool) -> None:
        original(self, destination, prefix, keep_vars)
        for name, one in destination.items():
            if isinstance(one, DTensor):
                patch.reached()
                destination[name] = one.to_local()


@fault(
    id="dt-loading-replaces-the-parameters",
    symptom="After a restart from a checkpoint the optimizer moves parameters that the model no longer has.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-05"],
    ranks="all",
)
def loading_replaces_the_parameters(patch: Patch) -> None:
    @patch.around(f"{_MODULE}.load_state_dict", parameters=("self", "state_dict", "strict", "assign"))
    def load(original: Any, self: Any, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        patch.reached()
        return original(self, state_dict, strict, True)


@fault(
    id="dt-deep-copy-shares-its-memory",
    symptom="A teacher model that was copied from the student moves with it.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-06"],
    ranks="all",
)
def deep_copy_shares_its_memory(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor:DTensor.__deepcopy__")
    def deepcopy(original: Any, self: Any, memo: Any) -> Any:
        if isinstance(self, DTensor) and self.is_leaf and not self.requires_grad:
            patch.reached()
            return self.detach()
        return original(self, memo)


@fault(
    id="dt-parameter-moved-by-its-part-alone",
    symptom="With dispatch skipped the optimizer moves a copy: the loss does not fall.",
    capability="dtensor",
    layer="l1",
    must_fail=["DT-1-06"],
    ranks="all",
)
def parameter_moved_by_its_part_alone(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:SkipDTensorDispatch.__torch_dispatch__", parameters=("self", "func", "types"))
    def dispatch(original: Any, self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.endswith("_") and isinstance(args[0], DTensor):
            patch.reached()
            return func(args[0]._local_tensor.clone(), *args[1:], **(kwargs or {}))
        return original(self, func, types, args, kwargs)
