"""Faults of operators on distributed tensors: where elements are, and what indices point at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hyper_parallel_tests.faults import Patch, fault
from hyper_parallel_tests.faults.dtensor_operators_rules import change_rule, computed_locally, taken_for_reduced


@fault(
    id="dt-parts-joined-rank-by-rank",
    symptom="Concatenated sequences are interleaved by rank.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def parts_joined_rank_by_rank(patch: Patch) -> None:
    change_rule(patch, ["aten.cat.default"], computed_locally)


@fault(
    id="dt-permuted-tensor-keeps-its-placement",
    symptom="After a transposition values are right on one rank and misplaced on many.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def permuted_tensor_keeps_its_placement(patch: Patch) -> None:
    def change(schema: Any, sharding: Any) -> Any:
        before = schema.args_spec[0].placements
        if sharding.output_spec.placements == before:
            return sharding
        return replace(sharding, output_spec=replace(sharding.output_spec, placements=before))

    change_rule(patch, ["aten.t.default", "aten.transpose.int", "aten.permute.default"], change)


@fault(
    id="dt-rows-sorted-within-the-shard",
    symptom="The best candidates are those of each rank, not those of all.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def rows_sorted_within_the_shard(patch: Patch) -> None:
    change_rule(patch, ["aten.sort.default", "aten.sort.stable"], computed_locally)


@fault(
    id="dt-mask-counts-rows-of-the-shard",
    symptom="A causal mask on a sharded sequence lets late tokens see nothing, or early ones the future.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def mask_counts_rows_of_the_shard(patch: Patch) -> None:
    change_rule(patch, ["aten.tril.default", "aten.triu.default"], computed_locally)


@fault(
    id="dt-padding-is-cut-at-the-wrong-end",
    symptom="A gathered tensor lacks the first row of the last rank, and has a row of zeros at the end.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def padding_is_cut_at_the_wrong_end(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor.placement_types:unpad_tensor", parameters=("tensor", "pad_dim", "pad_size"))
    def unpad(original: Any, tensor: Any, pad_dim: int, pad_size: int) -> Any:
        if not pad_size:
            return original(tensor, pad_dim, pad_size)
        patch.reached()
        return tensor.narrow(pad_dim, pad_size, tensor.size(pad_dim) - pad_size)


@fault(
    id="dt-foreign-tokens-are-not-masked",
    symptom="Embeddings of a sharded vocabulary are off by the vectors of other tokens.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
    ranks="all",
)
def foreign_tokens_are_not_masked(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor._ops._mask_buffer:MaskBuffer.apply_mask", parameters=("self", "tensor"))
    def apply_mask(original: Any, self: Any, tensor: Any) -> None:
        if self.data is not None and self.data.any():
            patch.reached()


@fault(
    id="dt-embedding-gradient-is-not-reduced",
    symptom="A replicated embedding learns only the tokens of the rank's own samples.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def embedding_gradient_is_not_reduced(patch: Patch) -> None:
    change_rule(patch, ["aten.embedding_dense_backward.default"], taken_for_reduced)


@fault(
    id="dt-vocabulary-part-begins-one-late",
    symptom="Tokens of a sharded vocabulary get their neighbour's vector, unless the first rank has them.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-02"],
)
def vocabulary_part_begins_one_late(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor.placement_types:_MaskPartial._mask_tensor")
    def mask_tensor(original: Any, tensor: Any, offset: int, size: int) -> tuple[Any, Any]:
        mask, tokens = original(tensor, offset, size)
        if not offset:
            return mask, tokens
        patch.reached()
        return mask, (tokens + ~mask) % size
