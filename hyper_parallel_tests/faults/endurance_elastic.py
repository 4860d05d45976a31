"""Faults of ranks that die and are started anew, on torch_native."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="endurance-generators-fresh-in-restarted-workers",
    symptom="After the death of a worker dropout has the masks of a run that begins.",
    capability="recovery",
    layer="l4",
    must_fail=["EN-06"],
)
def generators_fresh_in_restarted_workers(patch: Patch) -> None:
    @patch.around(
        "hyper_parallel_tests.engines.torch_native.recovery.elastic:launch_agent",
        parameters=("config", "entrypoint", "args"),
    )
    def launch(original: Any, config: Any, entrypoint: Any, args: list[Any]) -> Any:
        patch.reached()
        return original(config, _forgetful, [entrypoint, *args])


def _forgetful(entrypoint: Callable[..., Any], *args: Any) -> Any:
    """A worker that restores no generator when it has been started anew."""
    from hyper_parallel_tests.engines.torch_native.trainer import state

    fill = state._fill

    def some(target: dict[str, Any], folder: Any, reader: Any) -> None:
        restored = {key: one for key, one in target.items() if not re.match(r"rank_\d+\.random\.torch$", key)}
        fill(restored, folder, reader)
        target.update(restored)

    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        state._fill = some
    return entrypoint(*args)


@fault(
    id="endurance-a-restart-too-many",
    symptom="A run that cannot go on is started more often than its user allowed.",
    capability="recovery",
    layer="l4",
    must_fail=["EN-06"],
)
def a_restart_too_many(patch: Patch) -> None:
    @patch.around(
        "hyper_parallel_tests.engines.torch_native.recovery.elastic:launch_agent",
        parameters=("config", "entrypoint", "args"),
    )
    def launch(original: Any, config: Any, *args: Any) -> Any:
        patch.reached()
        config.max_restarts += 1
        return original(config, *args)
