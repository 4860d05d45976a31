"""Faults of expert parallelism on torch_native: rows on their way, and gradients over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.expert_parallel"


@fault(
    id="ep-rows-stay-sorted-by-rank",
    symptom="Experts compute with rows of each other as soon as a rank has more than one expert.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-01"],
    ranks="all",
)
def rows_stay_sorted_by_rank(patch: Patch) -> None:
    @patch.around(f"{_OURS}.movement:Exchange.by_expert", parameters=("self",))
    def by_expert(original: Any, self: Any) -> Any:
        patch.reached()
        return torch.arange(len(original(self)))


@fault(
    id="ep-combined-in-the-order-of-dispatch",
    symptom="Outputs of experts go to other tokens than their inputs came from.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-01"],
)
def combined_in_the_order_of_dispatch(patch: Patch) -> None:
    @patch.around(f"{_OURS}.movement:Exchange.by_rank", parameters=("self",))
    def by_rank(original: Any, self: Any) -> Any:
        patch.reached()
        return self.by_expert()


@fault(
    id="ep-split-sizes-swapped",
    symptom="With an uneven load the exchange of rows fails or hangs: each rank announces what it receives.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-01"],
)
def split_sizes_swapped(patch: Patch) -> None:
    @patch.around(f"{_OURS}:dispatch_tokens", parameters=("rows", "counts", "device_mesh"))
    def dispatch(original: Any, *args: Any) -> Any:
        found = original(*args)
        if found.sent != found.received:
            patch.reached()
        return found._replace(sent=found.received, received=found.sent)


@fault(
    id="ep-gradient-of-dispatch-lost",
    symptom="Loss right, convergence worse: nothing below a layer of experts learns through the experts.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-01"],
    ranks="all",
)
def gradient_of_dispatch_lost(patch: Patch) -> None:
    class NoGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Any) -> Any:
            return rows.view_as(rows)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            patch.reached()
            return torch.zeros_like(grad)

    @patch.around(f"{_OURS}.movement:differentiable_all_to_all", parameters=("tensor", "output_split_sizes"))
    def exchange(original: Any, tensor: Any, *args: Any, **options: Any) -> Any:
        return original(NoGradient.apply(tensor), *args, **options)


@fault(
    id="ep-counts-exchanged-twice",
    symptom="Layers of experts wait for the host twice as often as they need to.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-01"],
    ranks="all",
)
def counts_exchanged_twice(patch: Patch) -> None:
    @patch.around(f"{_OURS}.movement:exchange_counts", parameters=("rows", "counts", "device_mesh"))
    def exchange(original: Any, rows: Any, counts: Any, device_mesh: Any) -> Any:
        patch.reached()
        original(rows, counts, device_mesh)
        return original(rows, counts, device_mesh)


@fault(
    id="ep-wrong-counts-raise-where-they-are",
    symptom="One rank ends with an error about its counts, and all others wait in the exchange until they are killed.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-01"],
    watchdog=5,
)
def wrong_counts_raise_where_they_are(patch: Patch) -> None:
    @patch.around(f"{_OURS}.movement:exchange_counts", parameters=("rows", "counts", "device_mesh"))
    def exchange(original: Any, rows: Any, counts: Any, device_mesh: Any) -> Any:
        if int(counts.sum()) != len(rows):
            patch.reached()
            raise ValueError(f"counts of {int(counts.sum())} rows in all for {len(rows)} rows")
        return original(rows, counts, device_mesh)


def _copied_over(patch: Patch, experts: bool, names: Any) -> None:
    """Has experts' gradients, or all others, reduced over other mesh dimensions: ``names`` of the mesh."""

    @patch.around(f"{_OURS}.gradients:copied_over", parameters=("parameter", "device_mesh"))
    def copied_over(original: Any, parameter: Any, device_mesh: Any) -> Any:
        right = original(parameter, device_mesh)
        if isinstance(parameter, DTensor) != experts:
            return right
        patch.reached()
        return names(device_mesh, right)


@fault(
    id="ep-expert-gradients-summed-over-ep",
    symptom="Experts learn from each other's gradients and become alike.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-02"],
    ranks="all",
)
def expert_gradients_summed_over_ep(patch: Patch) -> None:
    _copied_over(patch, True, lambda mesh, right: list(mesh.mesh_dim_names))


@fault(
    id="ep-router-gradients-not-synchronised",
    symptom="The copies of router and shared expert drift apart, and tokens are routed differently on each rank.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-02"],
    ranks="all",
)
def router_gradients_not_synchronised(patch: Patch) -> None:
    _copied_over(patch, False, lambda mesh, right: [])


@fault(
    id="ep-copies-of-experts-not-reduced",
    symptom="With data parallelism beside experts the copies of an expert drift apart.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-02"],
    ranks="all",
)
def copies_of_experts_not_reduced(patch: Patch) -> None:
    _copied_over(patch, True, lambda mesh, right: [])


@fault(
    id="ep-expert-gradients-not-scaled",
    symptom="Experts learn as many times faster than the rest as there are ranks: their gradients are sums, not means.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-02"],
    ranks="all",
)
def expert_gradients_not_scaled(patch: Patch) -> None:
    @patch.around(f"{_OURS}:synchronize_moe_gradients", parameters=("module", "device_mesh", "reduce_op_type"))
    def synchronize(original: Any, module: Any, device_mesh: Any, *, reduce_op_type: str = "avg") -> None:
        original(module, device_mesh, reduce_op_type=reduce_op_type)
        if reduce_op_type == "avg":
            patch.reached()
            for parameter in module.parameters():
                if isinstance(parameter, DTensor):
                    parameter.grad.to_local().mul_(device_mesh.size())


@fault(
    id="ep-expert-gradients-averaged-in-backward",
    symptom="Experts learn too slowly by the number of ranks, though the loss is right.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-02"],
    ranks="all",
)
def expert_gradients_averaged_in_backward(patch: Patch) -> None:
    class Averaged(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, matrices: Any, ranks: int) -> Any:
            ctx.ranks = ranks
            return matrices.view_as(matrices)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            patch.reached()
            return grad / ctx.ranks, None

    @patch.around(f"{_OURS}.experts:local", parameters=("parameter",))
    def local(original: Any, parameter: Any) -> Any:
        part = original(parameter)
        return Averaged.apply(part, parameter.device_mesh.size()) if isinstance(parameter, DTensor) else part


@fault(
    id="ep-absent-gradients-left-out",
    symptom="Training stands still in the first step in which some rank has no gradient for a shared parameter.",
    capability="expert_parallel",
    layer="l1",
    must_fail=["EP-1-02"],
    watchdog=5,
)
def absent_gradients_left_out(patch: Patch) -> None:
    @patch.around("torch.distributed:all_reduce", parameters=("tensor", "op", "group"))
    def all_reduce(original: Any, tensor: Any, op: Any = dist.ReduceOp.SUM, *others: Any, **options: Any) -> Any:
        if op != dist.ReduceOp.MAX:
            return original(tensor, op, *others, **options)
        # Each rank goes on with what it has itself.
        patch.reached()
        return None
