"""Faults of fully_shard on torch_native: reduction and accumulation of gradients, and zero_grad."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"


@fault(
    id="fs-gradients-summed-not-averaged",
    symptom="The loss is right at step 0 and runs away: every gradient is world-size times too large.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-03", "FS-2-01"],
    ranks="all",
)
def gradients_summed_not_averaged(patch: Patch) -> None:
    @patch.around(
        f"{_FSDP}._fsdp_collectives:_get_gradient_divide_factors",
        parameters=("reduce_scatter_group", "all_reduce_group", "reduce_dtype"),
    )
    def factors(_: Any, *args: Any) -> Any:
        patch.reached()
        return None, None, dist.ReduceOp.SUM, dist.ReduceOp.SUM


@fault(
    id="fs-reduce-op-not-read",
    symptom='set_reduce_op_type("sum") is accepted and gradients are averaged all the same.',
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-03"],
    ranks="all",
)
def reduce_op_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:HSDPModule.set_reduce_op_type", parameters=("self", "reduce_op_type", "recurse"))
    def write_only(_: Any, self: Any, reduce_op_type: str, recurse: bool = True) -> None:
        patch.reached()
        self.reduce_op_type = reduce_op_type


@fault(
    id="fs-reduce-op-set-once",
    symptom="Switching from sum back to avg has no effect: later gradients stay world-size times too large.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-03"],
    ranks="all",
)
def reduce_op_set_once(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:HSDPModule.set_reduce_op_type", parameters=("self", "reduce_op_type", "recurse"))
    def set_reduce_op_type(original: Any, self: Any, reduce_op_type: str, recurse: bool = True) -> None:
        if "sum" in vars(self).get("ops_set", ()):
            patch.reached()
            return
        self.ops_set = (*vars(self).get("ops_set", ()), reduce_op_type)
        original(self, reduce_op_type, recurse)


@fault(
    id="fs-all-reduce-recurses-always",
    symptom="recurse=False still reaches the children: their gradients are held back too.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-02"],
    ranks="all",
)
def all_reduce_recurses_always(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.module:HSDPModule.set_requires_all_reduce", parameters=("self", "requires_all_reduce", "recurse")
    )
    def set_requires_all_reduce(original: Any, self: Any, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        if not recurse:
            patch.reached()
        original(self, requires_all_reduce, recurse=True)


@fault(
    id="fs-ignored-gradients-reduced",
    symptom="Gradients of ignored parameters are summed over ranks behind the user's back.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-06"],
    ranks="all",
)
def ignored_gradients_reduced(patch: Patch) -> None:
    hooked = set()

    def reduce(parameter: Any) -> None:
        patch.reached()
        dist.all_reduce(parameter.grad)

    @patch.around(f"{_OURS}:fully_shard", parameters=("module",))
    def fully_shard(original: Any, module: Any, **options: Any) -> Any:
        for parameter in (options.get("ignored_params") or set()) - hooked:
            hooked.add(parameter)
            parameter.register_post_accumulate_grad_hook(reduce)
        return original(module, **options)


@fault(
    id="fs-zero-grad-keeps-pending",
    symptom="After zero_grad the next step still trains on gradients that had not been reduced yet.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-04"],
    ranks="all",
)
def zero_grad_keeps_pending(patch: Patch) -> None:
    patch.replace(f"{_OURS}.module:_drop_gradients", lambda _: lambda parameter, set_to_none: patch.reached())


@fault(
    id="fs-zero-grad-zeroes-parameters",
    symptom="zero_grad wipes the parameters: the model outputs zeros after the first step.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-04"],
    ranks="all",
)
def zero_grad_zeroes_parameters(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:_drop_gradients", parameters=("parameter", "set_to_none"))
    def drop(original: Any, parameter: Any, set_to_none: bool) -> None:
        original(parameter, set_to_none)
        patch.reached()
        parameter.sharded_param.data.zero_()


@fault(
    id="fs-gradient-rows-cut-by-floor",
    symptom="At odd sizes each rank updates its rows with gradients that belong to other rows.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-01"],
)
def gradient_rows_cut_by_floor(patch: Patch) -> None:
    @patch.around(
        f"{_FSDP}._fsdp_collectives:foreach_reduce_scatter_copy_in",
        parameters=("unsharded_grads", "reduce_scatter_input", "world_size"),
    )
    def copy_in(original: Any, unsharded_grads: Any, reduce_scatter_input: Any, world_size: int) -> None:
        for grad in unsharded_grads:
            if grad.size(0) % world_size:
                patch.reached()
                # The rows after the floor cut move to the next rank's part.
                grad.copy_(grad.roll(grad.size(0) // world_size - -(-grad.size(0) // world_size), dims=0))
        original(unsharded_grads, reduce_scatter_input, world_size)


@fault(
    id="fs-zero-grad-to-zero-drops",
    symptom="zero_grad(set_to_none=False) takes the gradients away, and who holds on to them sees old values.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-04"],
    ranks="all",
)
def zero_grad_to_zero_drops(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:HSDPModule.zero_grad", parameters=("self", "set_to_none"))
    def zero_grad(original: Any, self: Any, set_to_none: bool = True) -> None:
        if not set_to_none:
            patch.reached()
        original(self)


@fault(
    id="fs-scaling-tensor-read-once",
    symptom="A loss scale that changes between steps scales gradients by the value that it had when it was set.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-09"],
    ranks="all",
)
def scaling_tensor_read_once(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:HSDPModule.set_gradient_scaling_factor", parameters=("self", "factor"))
    def set_factor(original: Any, self: Any, factor: Any) -> None:
        if isinstance(factor, torch.Tensor):
            patch.reached()
            factor = factor.item()
        original(self, factor)


@fault(
    id="fs-wrong-scaling-factor-accepted",
    symptom="A factor that is no number fails in the first backward, far from where it was set, or is taken for 1.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-09"],
    ranks="all",
)
def wrong_scaling_factor_accepted(patch: Patch) -> None:
    patch.replace(f"{_OURS}.module:_check_factor", lambda _: lambda factor: patch.reached(), parameters=("factor",))
