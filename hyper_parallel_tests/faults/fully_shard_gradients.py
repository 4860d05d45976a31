"""Faults of fully_shard on torch_native: reduction and accumulation of gradients, and zero_grad."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"

# Positions of the arguments of FSDP2's foreach_reduce that the faults change.
_REDUCE_SCATTER_GROUP, _ALL_REDUCE_GROUP, _ALL_REDUCE_GRADS, _PARTIAL_OUTPUT = 2, 9, 11, 12
_FOREACH_REDUCE = (
    "fsdp_params",
    "unsharded_grads",
    "reduce_scatter_group",
    "reduce_scatter_stream",
    "reduce_scatter_comm",
    "orig_dtype",
    "reduce_dtype",
    "device",
    "gradient_divide_factor",
    "all_reduce_group",
    "all_reduce_stream",
    "all_reduce_grads",
    "partial_reduce_output",
)


def _change_reduction(patch: Patch, change: Any) -> None:
    """Has `change` alter the list of foreach_reduce's arguments where it says True."""

    @patch.around(f"{_FSDP}._fsdp_param_group:foreach_reduce", parameters=_FOREACH_REDUCE)
    def foreach_reduce(original: Any, *args: Any) -> Any:
        args = list(args)
        if change(args):
            patch.reached()
        return original(*args)


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
    id="fs-all-reduce-flag-not-read",
    symptom="set_requires_all_reduce(False) saves nothing: each micro-step still reduces over the replicas.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-02"],
    ranks="all",
)
def all_reduce_flag_not_read(patch: Patch) -> None:
    def change(args: list[Any]) -> bool:
        unread = args[_ALL_REDUCE_GROUP] is not None and not args[_ALL_REDUCE_GRADS]
        args[_ALL_REDUCE_GRADS] = True
        return unread

    _change_reduction(patch, change)


@fault(
    id="fs-held-back-gradients-lost",
    symptom="Accumulating over replicas trains on the last micro-batch alone.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-02"],
    ranks="all",
)
def held_back_gradients_lost(patch: Patch) -> None:
    def change(args: list[Any]) -> bool:
        lost = args[_PARTIAL_OUTPUT] is not None
        args[_PARTIAL_OUTPUT] = None
        return lost

    _change_reduction(patch, change)


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
    id="fs-all-reduce-skipped-on-one-rank",
    symptom="Training on a hybrid mesh hangs: one rank leaves out the all-reduce that its replica waits in.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-02"],
    applied_on=[3],
    watchdog=5,
)
def all_reduce_skipped_on_one_rank(patch: Patch) -> None:
    def change(args: list[Any]) -> bool:
        skipped = args[_ALL_REDUCE_GROUP] is not None and args[_ALL_REDUCE_GRADS]
        if skipped:
            args[_ALL_REDUCE_GROUP] = None
        return skipped

    _change_reduction(patch, change)


@fault(
    id="fs-replicated-gradients-not-reduced",
    symptom="Replicated parameters drift apart: each rank trains its own copy.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-07"],
    ranks="all",
)
def replicated_gradients_not_reduced(patch: Patch) -> None:
    def change(args: list[Any]) -> bool:
        skipped = args[_REDUCE_SCATTER_GROUP].size() == 1 and args[_ALL_REDUCE_GROUP] is not None
        if skipped:
            args[_ALL_REDUCE_GROUP] = None
        return skipped

    _change_reduction(patch, change)


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
    id="fs-fused-gradients-shifted",
    symptom="With comm_fusion on, a layer's second parameter gets gradients one element off.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-08", "FS-2-01"],
)
def fused_gradients_shifted(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:foreach_reduce", parameters=_FOREACH_REDUCE)
    def foreach_reduce(original: Any, fsdp_params: Any, *args: Any) -> Any:
        reduced = original(fsdp_params, *args)
        if len(fsdp_params) > 1:
            patch.reached()
            local = fsdp_params[1].sharded_param.grad._local_tensor
            local.copy_(local.roll(1))
        return reduced


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
