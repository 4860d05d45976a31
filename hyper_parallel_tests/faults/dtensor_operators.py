"""Faults of operators on distributed tensors: reductions, statistics and what goes on along a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.distributed.tensor import Partial, Shard

from hyper_parallel_tests.faults import Patch, fault
from hyper_parallel_tests.faults.dtensor_operators_rules import (
    change_rule,
    computed_locally,
    reduced_by,
    taken_for_reduced,
)


@fault(
    id="dt-mean-of-means",
    symptom="The loss of a batch that does not divide evenly leans to the rank with fewer samples.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def mean_of_means(patch: Patch) -> None:
    def change(schema: Any, sharding: Any) -> Any:
        whole = schema.args_spec[0]
        if not sharding.needs_redistribute or not all(isinstance(one, Shard) for one in whole.placements):
            return sharding
        averaged = replace(sharding.output_spec, placements=(Partial("avg"),) * len(whole.placements))
        return replace(sharding, output_spec=averaged, redistribute_schema=None, needs_redistribute=False)

    change_rule(patch, ["aten.mean.default"], change)


@fault(
    id="dt-mean-divides-by-the-shard",
    symptom="A mean over a sharded dimension is as many times too large as there are ranks.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def mean_divides_by_the_shard(patch: Patch) -> None:
    change_rule(patch, ["aten.mean.default", "aten.mean.dim"], reduced_by("sum"))


@fault(
    id="dt-max-of-a-shard",
    symptom="Each rank scales by the largest value that it has itself.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def max_of_a_shard(patch: Patch) -> None:
    change_rule(patch, ["aten.max.default", "aten.amax.default"], taken_for_reduced)


@fault(
    id="dt-variance-of-a-shard",
    symptom="Normalised activations differ between ranks, the more the fewer elements a shard has.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def variance_of_a_shard(patch: Patch) -> None:
    def change(schema: Any, sharding: Any) -> Any:
        local = computed_locally(schema, sharding)
        return local if local is sharding else reduced_to(local, "avg")

    def reduced_to(sharding: Any, reduction: str) -> Any:
        placements = (Partial(reduction),) * len(sharding.output_spec.placements)
        # What is computed locally has an order again.
        return replace(sharding, output_spec=replace(sharding.output_spec, placements=placements, shard_order=None))

    change_rule(patch, ["aten.var.correction", "aten.std.correction"], change)


@fault(
    id="dt-norm-adds-norms",
    symptom="Gradients are clipped too much: the total norm is the sum of the shards' norms.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def norm_adds_norms(patch: Patch) -> None:
    change_rule(patch, ["aten.linalg_vector_norm.default"], reduced_by("sum"))


@fault(
    id="dt-argmax-counts-from-the-shard",
    symptom="Accuracy is at the level of chance with a sharded vocabulary: indices are those within the shard.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def argmax_counts_from_the_shard(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.tensor._nonlinear_redux:_convert_to_global_idxs",
        parameters=("local_idx", "global_shape", "device_mesh", "placements", "dim"),
    )
    def convert(original: Any, local_idx: Any, *where: Any) -> tuple[int, Any]:
        gather_dim, indices = original(local_idx, *where)
        if not indices.equal(local_idx):
            patch.reached()
        return gather_dim, local_idx


@fault(
    id="dt-softmax-of-a-shard",
    symptom="Attention with sharded keys gives each shard's weights a sum of one.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def softmax_of_a_shard(patch: Patch) -> None:
    change_rule(patch, ["aten._softmax.default", "aten._log_softmax.default"], computed_locally)


@fault(
    id="dt-layer-norm-weight-sees-its-shard",
    symptom="Weights of layer norms drift apart between sequence-parallel ranks.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def layer_norm_weight_sees_its_shard(patch: Patch) -> None:
    change_rule(patch, ["aten.native_layer_norm_backward.default"], taken_for_reduced)


@fault(
    id="dt-scan-starts-anew-in-each-shard",
    symptom="Cumulative positions of packed sequences start again at each rank's part.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def scan_starts_anew_in_each_shard(patch: Patch) -> None:
    change_rule(patch, ["aten.cumsum.default"], computed_locally)


@fault(
    id="dt-broadcast-gradient-is-not-reduced",
    symptom="The bias of a layer with a sharded batch learns from one rank's rows only.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def broadcast_gradient_is_not_reduced(patch: Patch) -> None:
    change_rule(patch, ["aten.sum.dim_IntList"], taken_for_reduced)
