"""Faults of a pipeline's stages, micro-batches and multimodal order on torch_native."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_schedule"
_MICRO_BATCHES = "torch.distributed.pipelining.microbatch"
_STAGES = ("num_layers", "num_stages", "counts", "weights")
_SPLIT = ("tensor", "spec", "num_chunks")


@fault(
    id="pp-remainder-of-layers-dropped",
    symptom="The last layers of a model whose depth does not divide are in no stage and never train.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-01"],
)
def remainder_of_layers_dropped(patch: Patch) -> None:
    @patch.around(f"{_OURS}:split_into_stages", parameters=_STAGES)
    def split(original: Any, num_layers: int, num_stages: int, **options: Any) -> Any:
        parts = original(num_layers, num_stages, **options)
        if any(options.values()):
            return parts
        patch.reached()
        size = num_layers // num_stages
        return [range(size * stage, size * (stage + 1)) for stage in range(num_stages)]


@fault(
    id="pp-weights-of-layers-ignored",
    symptom="A stage with a heavy layer has as many others as all stages, and all wait for it.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-01"],
)
def weights_of_layers_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}:split_into_stages", parameters=_STAGES)
    def split(original: Any, num_layers: int, num_stages: int, **options: Any) -> Any:
        if options.pop("weights", None) is not None:
            patch.reached()
        return original(num_layers, num_stages, **options)


@fault(
    id="pp-uneven-batch-truncated",
    symptom="The last samples of a batch that does not divide take no part in the step.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-04"],
)
def uneven_batch_truncated(patch: Patch) -> None:
    @patch.around(f"{_MICRO_BATCHES}:_split_tensor", parameters=_SPLIT)
    def split(original: Any, tensor: Any, spec: Any, num_chunks: int) -> Any:
        rest = tensor.size(spec.split_dim) % num_chunks
        if rest:
            patch.reached()
        return original(tensor.narrow(spec.split_dim, 0, tensor.size(spec.split_dim) - rest), spec, num_chunks)


@fault(
    id="pp-batch-dimension-ignored",
    symptom="Inputs whose batch is their second dimension are cut along the sequence.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-04"],
)
def batch_dimension_ignored(patch: Patch) -> None:
    @patch.around(f"{_MICRO_BATCHES}:_split_tensor", parameters=_SPLIT)
    def split(original: Any, tensor: Any, spec: Any, num_chunks: int) -> Any:
        if spec.split_dim:
            patch.reached()
        return original(tensor, type(spec)(0), num_chunks)


@fault(
    id="pp-target-of-the-next-micro-batch",
    symptom="The loss stays at that of guessing: each micro-batch is compared with another one's target.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-04"],
)
def target_of_the_next_micro_batch(patch: Patch) -> None:
    @patch.around(f"{_OURS}:split_target", parameters=("target", "n_microbatches"))
    def split(original: Any, target: Any, n_microbatches: int) -> Any:
        parts = original(target, n_microbatches)
        patch.reached()
        return parts[1:] + parts[:1]


@fault(
    id="pp-keyword-arguments-undivided",
    symptom="Each micro-batch gets the mask of the whole batch.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-04"],
)
def keyword_arguments_undivided(patch: Patch) -> None:
    @patch.around(f"{_OURS}:split_microbatches", parameters=("args", "kwargs", "n_microbatches"))
    def split(original: Any, args: Any, kwargs: Any, n_microbatches: int, *dims: Any) -> Any:
        divided, named = original(args, kwargs, n_microbatches, *dims)
        if kwargs:
            patch.reached()
        return divided, [kwargs] * len(named)


@fault(
    id="pp-outputs-merged-as-they-end",
    symptom="The outputs of a step are there, in another order than the inputs.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-04"],
)
def outputs_merged_as_they_end(patch: Patch) -> None:
    @patch.around(f"{_OURS}.microbatches:merge_chunks", parameters=("chunks", "chunk_spec"))
    def merge(original: Any, chunks: Any, chunk_spec: Any) -> Any:
        patch.reached()
        return original(chunks[::-1], chunk_spec)


@fault(
    id="pp-micro-batches-detached",
    symptom="What comes before the pipeline has no gradients.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-04"],
)
def micro_batches_detached(patch: Patch) -> None:
    @patch.around(f"{_MICRO_BATCHES}:_split_tensor", parameters=_SPLIT)
    def split(original: Any, tensor: Any, spec: Any, num_chunks: int) -> Any:
        if not tensor.requires_grad:
            return original(tensor, spec, num_chunks)
        patch.reached()
        with torch.no_grad():
            return [part.clone().requires_grad_() for part in original(tensor.detach(), spec, num_chunks)]


@fault(
    id="pp-encoded-in-the-order-of-ranks",
    symptom="Text and images of a multimodal batch do not belong to each other.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-05"],
)
def encoded_in_the_order_of_ranks(patch: Patch) -> None:
    @patch.around(f"{_OURS}:mpipe_transpose", parameters=("encoded",))
    def transpose(original: Any, encoded: Any) -> Any:
        original(encoded)
        patch.reached()
        return list(itertools.chain(*encoded))


@fault(
    id="pp-reordering-not-undone",
    symptom="Losses of a reordered multimodal batch belong to other samples than their places say.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-05"],
)
def reordering_not_undone(patch: Patch) -> None:
    @patch.around(f"{_OURS}:mpipe_restore", parameters=("items", "order"))
    def restore(original: Any, items: Any, order: Any) -> Any:
        original(items, order)
        patch.reached()
        return [items[place] for place in order]


@fault(
    id="pp-encoders-first",
    symptom="A multimodal step needs the memory of all its images at once.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-05"],
)
def encoders_first(patch: Patch) -> None:
    @patch.around(f"{_OURS}:mpipe_table", parameters=("pp_size", "n_microbatches"))
    def table(original: Any, pp_size: int, n_microbatches: int) -> Any:
        patch.reached()
        return {
            rank: sorted(actions, key=lambda one: not one.startswith(("0F", "0SEND_F")))
            for rank, actions in original(pp_size, n_microbatches).items()
        }


@fault(
    id="pp-reordering-by-cost-alone",
    symptom="The step takes longer with data reordering than without: the expensive samples are together.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-05"],
)
def reordering_by_cost_alone(patch: Patch) -> None:
    @patch.around(f"{_OURS}:mpipe_reordering", parameters=("costs", "n_microbatches"))
    def reorder(original: Any, costs: Any, n_microbatches: int) -> Any:
        order = original(costs, n_microbatches)
        patch.reached()
        return sorted(order, key=lambda sample: -costs[sample])
