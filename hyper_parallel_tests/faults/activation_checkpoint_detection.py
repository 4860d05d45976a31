"""Faults of activation checkpointing on torch_native: regions that change and are accepted."""

from __future__ import annotations

from typing import Any

from torch.utils.checkpoint import CheckpointError

from hyper_parallel_tests.faults import Patch, fault

_TORCH = "torch.utils.checkpoint"
_FRAME = ("self", "recompute_fn", "early_stop", "unpack_error_cb", "metadata_fn")
_CHECK = f"{_TORCH}:_CheckpointFrame.check_recomputed_tensors_match"


@fault(
    id="ac-changed-region-accepted",
    symptom="A layer that depends on a counter trains with gradients of another function than its loss.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-03"],
)
def changed_region_accepted(patch: Patch) -> None:
    @patch.around(_CHECK, parameters=("self", "gid"))
    def check(_: Any, self: Any, gid: Any) -> None:
        patch.reached()


@fault(
    id="ac-change-not-named",
    symptom="A region that changed ends in an error that does not say what did.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-03"],
)
def change_not_named(patch: Patch) -> None:
    @patch.around(_CHECK, parameters=("self", "gid"))
    def check(original: Any, self: Any, gid: Any) -> None:
        try:
            original(self, gid)
        except CheckpointError:
            patch.reached()
            raise CheckpointError("recomputation differs from forward") from None


@fault(
    id="ac-dtype-not-compared",
    symptom="A layer that runs again in another precision is not noticed.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-03"],
)
def dtype_not_compared(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_CheckpointFrame.__init__", parameters=_FRAME)
    def init(original: Any, self: Any, recompute_fn: Any, early_stop: bool, error: Any, metadata: Any) -> None:
        def without_dtype(tensor: Any) -> Any:
            patch.reached()
            found = metadata(tensor)
            return found and {name: one for name, one in found.items() if name != "dtype"}

        original(self, recompute_fn, early_stop, error, without_dtype)


@fault(
    id="ac-written-input-accepted",
    symptom="An activation that is changed in place after its region gives wrong gradients without a word.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-03"],
)
def written_input_accepted(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_CheckpointFrame.save_inputs", parameters=("self",))
    def save(_: Any, self: Any, *args: Any) -> None:
        patch.reached()
        self.saved_args = list(args)


@fault(
    id="ac-written-output-accepted",
    symptom="A kept output that the region changes in place gives wrong gradients without a word.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-03"],
)
def written_output_accepted(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_VersionWrapper.get_val", parameters=("self", "allow_cache_entry_mutation"))
    def get(_: Any, self: Any, allow_cache_entry_mutation: bool) -> Any:
        if not allow_cache_entry_mutation:
            patch.reached()
        return self.val
