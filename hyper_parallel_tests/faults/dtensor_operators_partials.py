"""Faults of operators on distributed tensors: parts of products, losses and others that are not yet reduced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.distributed.tensor import Partial

from hyper_parallel_tests.faults import Patch, fault
from hyper_parallel_tests.faults.dtensor_operators_rules import (
    change_rule,
    computed_locally,
    reduced_by,
    taken_for_reduced,
)


def _stays_partial(schema: Any, sharding: Any) -> Any:
    """As if the operator commuted with the reduction of its first operand."""
    partial = any(isinstance(one, Partial) for one in schema.args_spec[0].placements)
    return computed_locally(schema, sharding) if partial else sharding


@fault(
    id="dt-relu-of-parts",
    symptom="A row-parallel layer followed by an activation computes with parts of sums.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def relu_of_parts(patch: Patch) -> None:
    change_rule(patch, ["aten.relu.default", "aten.exp.default", "aten.abs.default"], _stays_partial)


@fault(
    id="dt-product-of-parts",
    symptom="The square of a sum over ranks is the sum of the ranks' squares.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def product_of_parts(patch: Patch) -> None:
    change_rule(patch, ["aten.mul.Tensor"], _stays_partial)


@fault(
    id="dt-constant-is-added-to-every-part",
    symptom="An epsilon added to a sum over ranks counts once a rank.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def constant_is_added_to_every_part(patch: Patch) -> None:
    change_rule(patch, ["aten.add.Tensor"], _stays_partial)


@fault(
    id="dt-negative-maximum-stays-a-maximum",
    symptom="The smallest of negated values comes out where the largest is asked for.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def negative_maximum_stays_a_maximum(patch: Patch) -> None:
    def change(schema: Any, sharding: Any) -> Any:
        spec = sharding.output_spec
        same = schema.args_spec[0].placements
        if spec.placements == same or not any(isinstance(one, Partial) for one in same):
            return sharding
        return replace(sharding, output_spec=replace(spec, placements=same))

    change_rule(patch, ["aten.neg.default"], change)


@fault(
    id="dt-contraction-is-not-reduced",
    symptom="Gradients of replicated weights are those of the rank's own rows: replicas drift apart.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def contraction_is_not_reduced(patch: Patch) -> None:
    change_rule(patch, ["aten.mm.default", "aten.bmm.default"], taken_for_reduced)


@fault(
    id="dt-bias-is-added-by-every-rank",
    symptom="Row-parallel layers add their bias once a rank.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def bias_is_added_by_every_rank(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor.placement_types:Partial._partition_value")
    def part(original: Any, self: Any, tensor: Any, *where: Any) -> Any:
        if self.reduce_op != "sum":
            return original(self, tensor, *where)
        patch.reached()
        return tensor


@fault(
    id="dt-losses-of-ranks-are-added",
    symptom="The mean loss grows with the number of ranks.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def losses_of_ranks_are_added(patch: Patch) -> None:
    change_rule(patch, ["aten.nll_loss_forward.default"], reduced_by("sum"))


@fault(
    id="dt-loss-of-the-own-samples",
    symptom="Each rank reports, and trains on, the loss of its own samples.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def loss_of_the_own_samples(patch: Patch) -> None:
    change_rule(patch, ["aten.nll_loss_forward.default"], taken_for_reduced)
