"""Faults of offline conversions of checkpoints on torch_native."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.checkpoint_export"


@fault(
    id="conversion-nested-names-lost",
    symptom="Two parts of a checkpoint that have a weight of one name are one tensor in the files.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def nested_names_lost(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_tensors", parameters=("state", "prefix"))
    def tensors(original: Any, state: Any, prefix: str = "") -> Any:
        if prefix:
            patch.reached()
        return original(state, "")


@fault(
    id="conversion-nested-values-lost",
    symptom="A checkpoint turned into one file has the weights, and no schedule to go on with.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def nested_values_lost(patch: Patch) -> None:
    def tensors(state: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}

    @patch.around(f"{_OURS}:dcp_to_torch_save", parameters=("dcp_checkpoint_dir", "torch_save_path"))
    def convert(original: Any, dcp_checkpoint_dir: Any, torch_save_path: Any) -> None:
        original(dcp_checkpoint_dir, torch_save_path)
        patch.reached()
        whole = torch.load(torch_save_path, weights_only=True)
        torch.save(
            {name: tensors(one) if isinstance(one, Mapping) else one for name, one in whole.items()}, torch_save_path
        )


@fault(
    id="conversion-part-of-the-first-rank-alone",
    symptom="A checkpoint of two ranks turned into one file has the first rank's rows, and anything below.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def part_of_the_first_rank_alone(patch: Patch) -> None:
    target = "torch.distributed.checkpoint.planner_helpers:create_read_items_for_chunk_list"

    @patch.around(target, parameters=("fqn", "checkpoint_md", "local_chunks"))
    def reads(original: Any, fqn: str, checkpoint_md: Any, local_chunks: Any) -> Any:
        found = original(fqn, checkpoint_md, local_chunks)
        if len(found) > 1:
            patch.reached()
        return found[:1]


@fault(
    id="conversion-widens-bfloat16",
    symptom="A model in bfloat16 is twice as large in the files as in its checkpoint.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def widens_bfloat16(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_exported", parameters=("value", "dtype"))
    def exported(original: Any, value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        if value.dtype != torch.bfloat16 or dtype is not None:
            return original(value, dtype)
        patch.reached()
        return original(value.float(), dtype)


@fault(
    id="conversion-keeps-the-dtype",
    symptom="Files that were to be in half the bytes are as large as the checkpoint.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def keeps_the_dtype(patch: Patch) -> None:
    @patch.around(f"{_OURS}:export_safetensors", parameters=("state_dict", "folder"))
    def export(original: Any, state_dict: Any, folder: Any, *, dtype: Any = None, **options: Any) -> None:
        if dtype is not None:
            patch.reached()
        original(state_dict, folder, **options)
