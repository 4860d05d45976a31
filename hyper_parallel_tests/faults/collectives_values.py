"""Faults of the values and of the gradients that collectives give."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native"
_ALL_REDUCE = ("tensor", "op", "group", "async_op")


def _with_gradient(output: Any, tensor: Any, gradient: Any) -> Any:
    """``output`` as a function of ``tensor`` whose backward is ``gradient``."""

    class Spoilt(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, _: Any) -> Any:
            return output.detach().clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return gradient(grad)

    return Spoilt.apply(tensor)


@fault(
    id="col-all-gather-gradient-not-summed",
    symptom="Gradients miss what the other ranks computed from the gathered tensor: slower convergence.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-06"],
    ranks="all",
)
def all_gather_gradient_not_summed(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.differentiable_collectives:differentiable_all_gather", parameters=("tensor", "dim", "group")
    )
    def gather(original: Any, tensor: Any, dim: int = 0, *, group: Any = None) -> Any:
        def own_part(grad: Any) -> Any:
            patch.reached()
            return grad.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()

        return _with_gradient(original(tensor, dim, group=group), tensor, own_part)


@fault(
    id="col-reduce-scatter-gradient-averaged",
    symptom="Gradients behind a reduce-scatter are too small by the group's size.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-06"],
)
def reduce_scatter_gradient_averaged(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.differentiable_collectives:differentiable_reduce_scatter", parameters=("tensor", "dim", "group")
    )
    def scatter(original: Any, tensor: Any, dim: int = 0, *, group: Any = None) -> Any:
        def average(grad: Any) -> Any:
            patch.reached()
            return grad / dist.get_world_size(group)

        return original(_with_gradient(tensor, tensor, average), dim, group=group)


@fault(
    id="col-all-to-all-gradient-stays-local",
    symptom="Each expert learns from the wrong ranks' tokens: the loss is right and the gradients are noise.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-06"],
)
def all_to_all_gradient_stays_local(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.differentiable_collectives:differentiable_all_to_all",
        parameters=("tensor", "output_split_sizes", "input_split_sizes", "group"),
    )
    def exchange(original: Any, tensor: Any, received: Any = None, sent: Any = None, *, group: Any = None) -> Any:
        def keep(grad: Any) -> Any:
            patch.reached()
            return grad.clone()

        output = original(tensor, received, sent, group=group)
        return _with_gradient(output, tensor, keep) if sent is None else output


@fault(
    id="col-one-rank-skips-a-collective",
    symptom="Training stands still: one rank left the step early and the others wait for it.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-01"],
    ranks=[0],
    applied_on=[1],
    watchdog=5,
)
def one_rank_skips_a_collective(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:broadcast", parameters=("tensor", "src", "group", "async_op"))
    def broadcast(_: Any, tensor: Any, src: int, *, group: Any = None, async_op: bool = False) -> Any:
        patch.reached()


@fault(
    id="col-average-is-a-sum",
    symptom="Averaged gradients are too large by the number of ranks; the loss runs away.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-01"],
    ranks="all",
)
def average_is_a_sum(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:_op", parameters=("name",))
    def op(original: Any, name: str) -> Any:
        if name == "avg":
            patch.reached()
            name = "sum"
        return original(name)


@fault(
    id="col-product-of-bools-is-any",
    symptom="An overflow flag that must be raised on all ranks is taken as raised when one raises it.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-01"],
)
def product_of_bools_is_any(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:all_reduce", parameters=_ALL_REDUCE)
    def all_reduce(original: Any, tensor: Any, op: str = "sum", *, group: Any = None, async_op: bool = False) -> Any:
        if tensor.dtype == torch.bool and op == "prod":
            patch.reached()
            op = "max"
        return original(tensor, op, group=group, async_op=async_op)


@fault(
    id="col-half-precision-reduced-as-integers",
    symptom="bf16 gradients lose all that is below one.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-01"],
)
def half_precision_reduced_as_integers(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:all_reduce", parameters=_ALL_REDUCE)
    def all_reduce(original: Any, tensor: Any, op: str = "sum", *, group: Any = None, async_op: bool = False) -> Any:
        work = original(tensor, op, group=group, async_op=async_op)
        if tensor.dtype in (torch.bfloat16, torch.float16):
            patch.reached()
            tensor.trunc_()
        return work


@fault(
    id="col-gathered-parts-rotated",
    symptom="Each rank sees its own part first: full parameters are put together in a wrong order.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-01"],
)
def gathered_parts_rotated(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:all_gather", parameters=("tensor_list", "tensor", "group", "async_op"))
    def gather(original: Any, tensor_list: Any, tensor: Any, *, group: Any = None, async_op: bool = False) -> Any:
        rank = dist.get_rank(group)
        if rank:
            patch.reached()
        rotated = tensor_list[-rank:] + tensor_list[:-rank] if rank else tensor_list
        return original(rotated, tensor, group=group, async_op=async_op)


@fault(
    id="col-uneven-parts-truncated",
    symptom="The last rows of long shards keep stale gradients.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-01"],
)
def uneven_parts_truncated(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:reduce_scatter", parameters=("output", "tensor_list", "op"))
    def scatter(original: Any, output: Any, tensor_list: Any, op: str = "sum", **options: Any) -> Any:
        rows = min(len(tensor) for tensor in tensor_list)
        if rows < len(output):
            patch.reached()
        return original(output[:rows], [tensor[:rows] for tensor in tensor_list], op, **options)


@fault(
    id="col-result-left-in-a-copy",
    symptom="All-to-all into a strided view leaves the view as it was.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-01"],
    ranks="all",
)
def result_left_in_a_copy(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:copy_back", parameters=("dense", "outputs"))
    def copy_back(_: Any, dense: Any, outputs: Any) -> Any:
        return patch.reached
