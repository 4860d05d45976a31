"""Faults of activation checkpointing on torch_native: what regions save."""

from __future__ import annotations

from typing import Any

from torch.utils.checkpoint import CheckpointPolicy

from hyper_parallel_tests.faults import Patch, fault

_TORCH = "torch.utils.checkpoint"
_CONFIG = "hyper_parallel_tests.engines.torch_native.activation_checkpoint:ActivationCheckpointConfig"
_FRAME = ("self", "recompute_fn", "early_stop", "unpack_error_cb", "metadata_fn")


@fault(
    id="ac-everything-kept",
    symptom="Recomputation per operator saves nothing.",
    capability="activation_checkpoint",
    layer="l2",
    must_fail=["AC-2-02"],
)
def everything_kept(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_CachingTorchDispatchMode.__init__", parameters=("self", "policy_fn"))
    def init(original: Any, self: Any, policy_fn: Any, *args: Any) -> None:
        patch.reached()
        original(self, lambda *given, **named: CheckpointPolicy.MUST_SAVE, *args)


@fault(
    id="ac-saved-tensors-kept",
    symptom="Recomputation costs time and saves nothing: what is recomputed has been kept too.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-01", "AC-2-02"],
)
def saved_tensors_kept(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_CheckpointFrame.__init__", parameters=_FRAME)
    def init(original: Any, self: Any, recompute_fn: Any, early_stop: bool, error: Any, metadata: Any) -> None:
        self.kept = []

        def keeping(tensor: Any) -> Any:
            patch.reached()
            self.kept.append(tensor.detach())
            return metadata(tensor)

        original(self, recompute_fn, early_stop, error, keeping)


@fault(
    id="ac-second-run-is-kept",
    symptom="Memory between forward and backward is small, and at the height of backward as without recomputation.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-01", "AC-2-02"],
)
def second_run_is_kept(patch: Patch) -> None:
    kept: list[Any] = []
    patch.at_the_end(kept.clear)

    @patch.around(f"{_TORCH}:_recomputation_hook.__init__", parameters=("self", "target_frame_ref", "gid"))
    def init(original: Any, self: Any, target_frame_ref: Any, gid: Any) -> None:
        original(self, target_frame_ref, gid)
        pack = self.pack_hook

        def keeping(tensor: Any) -> Any:
            patch.reached()
            kept.append(tensor.detach())
            return pack(tensor)

        self.pack_hook = keeping


@fault(
    id="ac-one-layer-more-between",
    symptom="Selective recomputation saves less than planned: a layer more lies between two regions.",
    capability="activation_checkpoint",
    layer="l2",
    must_fail=["AC-2-02"],
)
def one_layer_more_between(patch: Patch) -> None:
    def wider(original: property) -> property:
        def every(self: Any) -> int:
            found = original.fget(self)
            if found > 1:
                patch.reached()
                found += 1
            return found

        return property(every)

    patch.replace(f"{_CONFIG}.every", wider)
