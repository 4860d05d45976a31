"""Faults of selective offload on torch_native: what is refused, accepted."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.selective_offload"


@fault(
    id="offload-shards-accepted",
    symptom="Chosen shards stay on the device, or are empty when they are gathered.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def shards_accepted(patch: Patch) -> None:
    @patch.around(f"{_OURS}:selective_offload", parameters=("model", "optimizer"))
    def offload(original: Any, *args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        except ValueError:
            patch.reached()
            return None


@fault(
    id="offload-memory-of-others-freed",
    symptom="Parameters that lie in one buffer are garbage when one of them has left.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def memory_of_others_freed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.model:_check_memory", parameters=("model", "chosen"))
    def check(*_: Any) -> None:
        patch.reached()


@fault(
    id="offload-twice",
    symptom="Parameters of a model that is offloaded twice are NaN for good.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def twice(patch: Patch) -> None:
    class Forgetful(set):
        def isdisjoint(self, _: Any) -> bool:
            patch.reached()
            return True

    patch.replace(f"{_OURS}.model:_offloaded", lambda _: Forgetful())


@fault(
    id="offload-text-taken-for-keys",
    symptom="Of Adam's averages both are swapped although one was asked for.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def text_taken_for_keys(patch: Patch) -> None:
    @patch.around(f"{_OURS}:SwapOptimizerConfig", parameters=("swap_times", "state_keys"))
    def config(original: Any, *args: Any, state_keys: Any = None, **options: Any) -> Any:
        if isinstance(state_keys, str):
            patch.reached()
            state_keys = [state_keys]
        return original(*args, state_keys=state_keys, **options)
