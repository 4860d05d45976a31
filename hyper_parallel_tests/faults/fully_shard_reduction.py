"""Faults of fully_shard on torch_native: what goes into a reduction of gradients, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

# Positions of the arguments of FSDP2's foreach_reduce that the faults change.
_REDUCE_SCATTER_GROUP, _ALL_REDUCE_GROUP, _ALL_REDUCE_GRADS, _PARTIAL_OUTPUT, _ALL_REDUCE_HOOK = 2, 9, 11, 12, 13
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
    "all_reduce_hook",
)
_TARGET = "torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_reduce"


def _change_reduction(patch: Patch, change: Callable[[list[Any]], bool]) -> None:
    """Has `change` alter the list of foreach_reduce's arguments where it says True."""

    @patch.around(_TARGET, parameters=_FOREACH_REDUCE)
    def foreach_reduce(original: Any, *args: Any) -> Any:
        args = list(args)
        if change(args):
            patch.reached()
        return original(*args)


def _leave_out(patch: Patch, argument: int, where: Callable[[list[Any]], bool]) -> None:
    """Has foreach_reduce go without the argument at that position where it has one and `where` says so of them all."""

    def change(args: list[Any]) -> bool:
        left_out = args[argument] is not None and where(args)
        if left_out:
            args[argument] = None
        return left_out

    _change_reduction(patch, change)


def _is_whole(args: list[Any]) -> bool:
    """Whether these are gradients of parameters that one rank holds whole."""
    return args[_REDUCE_SCATTER_GROUP].size() == 1


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
    _leave_out(patch, _PARTIAL_OUTPUT, lambda args: True)


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
    _leave_out(patch, _ALL_REDUCE_GROUP, lambda args: args[_ALL_REDUCE_GRADS])


@fault(
    id="fs-replicated-gradients-not-reduced",
    symptom="Parameters that are kept whole drift apart: each rank trains its own copy, and nothing says so.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-07", "FSDP-L3-04"],
    ranks="all",
)
def replicated_gradients_not_reduced(patch: Patch) -> None:
    _leave_out(patch, _ALL_REDUCE_GROUP, _is_whole)


@fault(
    id="fs-replicas-train-apart",
    symptom="On a hybrid mesh each replica trains on its own rows: their parameters drift apart.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L3-01", "FS-2-02"],
    ranks="all",
)
def replicas_train_apart(patch: Patch) -> None:
    # Without a group for the reduce-scatter nothing is sharded.
    _leave_out(patch, _ALL_REDUCE_GROUP, lambda args: args[_REDUCE_SCATTER_GROUP] is not None and not _is_whole(args))


@fault(
    id="fs-scaling-skips-whole-parameters",
    symptom="Biases that are kept whole train at another rate than the weights: the factor misses them.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-06"],
    ranks="all",
)
def scaling_skips_whole_parameters(patch: Patch) -> None:
    _leave_out(patch, _ALL_REDUCE_HOOK, _is_whole)


@fault(
    id="fs-scaled-by-both-reductions",
    symptom="Accumulating over replicas multiplies the earlier micro-steps by the scaling factor twice.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-06"],
    ranks="all",
)
def scaled_by_both_reductions(patch: Patch) -> None:
    @patch.around(_TARGET, parameters=_FOREACH_REDUCE)
    def foreach_reduce(original: Any, *args: Any) -> Any:
        *rest, held_back = original(*args)
        if held_back is not None and args[_ALL_REDUCE_HOOK] is not None:
            patch.reached()
            args[_ALL_REDUCE_HOOK](held_back)
        return *rest, held_back


@fault(
    id="fs-own-part-instead-of-the-sum",
    symptom="Each rank trains its shards on its own rows alone: what the reduction yields is not used.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-03", "FS-1-01", "FS-1-05", "FS-1-06", "FS-2-01"],
    ranks="all",
)
def own_part_instead_of_the_sum(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:DefaultReduceScatter.__call__",
        parameters=("self", "output_tensor", "input_tensor", "group"),
    )
    def reduce_scatter(
        original: Any, self: Any, output_tensor: Any, input_tensor: Any, group: Any, *args: Any, **kwargs: Any
    ) -> Any:
        own = input_tensor.chunk(group.size())[group.rank()].clone()
        work = original(self, output_tensor, input_tensor, group, *args, **kwargs)
        patch.reached()
        output_tensor.copy_(own)
        return work


@fault(
    id="fs-fused-gradients-shifted",
    symptom="With comm_fusion on, a layer's second parameter gets gradients one element off.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-08", "FS-2-01"],
)
def fused_gradients_shifted(patch: Patch) -> None:
    @patch.around(_TARGET, parameters=_FOREACH_REDUCE)
    def foreach_reduce(original: Any, fsdp_params: Any, *args: Any) -> Any:
        reduced = original(fsdp_params, *args)
        if len(fsdp_params) > 1:
            patch.reached()
            local = fsdp_params[1].sharded_param.grad._local_tensor
            local.copy_(local.roll(1))
        return reduced


@fault(
    id="fs-second-backward-overwrites",
    symptom="Of several backwards before an update only the last one counts.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-03", "FSDP-L1-04"],
    ranks="all",
)
def second_backward_overwrites(patch: Patch) -> None:
    @patch.around(_TARGET, parameters=("fsdp_params", "unsharded_grads"))
    def foreach_reduce(original: Any, fsdp_params: Any, *args: Any) -> Any:
        for parameter in fsdp_params:
            if parameter.sharded_param.grad is not None:
                patch.reached()
                parameter.sharded_param.grad = None
        return original(fsdp_params, *args)
