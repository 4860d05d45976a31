"""Faults of runs that are interrupted more than once, on torch_native: what only a resumed run loses when it saves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_STATE = "hyper_parallel_tests.engines.torch_native.trainer.state"


def _saved_as_loaded(keys: str) -> Callable[[Patch], None]:
    """The defect that a run which was itself resumed saves values whose keys match as it has read them."""

    def install(patch: Patch) -> None:
        loaded: dict[str, Any] = {}

        @patch.around(f"{_STATE}:_fill", parameters=("target", "folder", "reader"))
        def fill(original: Any, target: dict[str, Any], folder: Any, reader: Any) -> None:
            original(target, folder, reader)
            for key, value in target.items():
                if re.match(keys, key):
                    loaded[key] = value.detach().clone() if isinstance(value, torch.Tensor) else value

        @patch.around(f"{_STATE}:collect", parameters=("trainer",))
        def collect(original: Any, trainer: Any) -> dict[str, Any]:
            found = original(trainer)
            if loaded:
                patch.reached()
            return found | loaded

    return install


def _lost(id: str, symptom: str, keys: str) -> None:
    fault(id=f"endurance-{id}", symptom=symptom, capability="trainer", layer="l4", must_fail=["EN-02"], ranks="all")(
        _saved_as_loaded(keys)
    )


_lost(
    "update-count-lost-at-the-second-restart",
    "Behind a second restart AdamW corrects its bias as if the steps since the first one had not been.",
    r"optimizer\.state\..*\.step$",
)
_lost(
    "generators-lost-at-the-second-restart",
    "Dropout behind a second restart repeats the masks that it had behind the first one.",
    r"rank_\d+\.random\.torch$",
)
