"""Faults of resume on torch_native: one ingredient of a run that is not restored."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_STATE = "hyper_parallel_tests.engines.torch_native.trainer.state"


def _not_restored(keys: str) -> Callable[[Patch], None]:
    """The defect that values whose keys match stay as they are in a fresh trainer."""

    def install(patch: Patch) -> None:
        @patch.around(f"{_STATE}:_fill", parameters=("target", "folder", "reader"))
        def fill(original: Any, target: dict[str, Any], folder: Any, reader: Any) -> None:
            restored = {key: value for key, value in target.items() if not re.match(keys, key)}
            if len(restored) < len(target):
                patch.reached()
            original(restored, folder, reader)
            target.update(restored)

    return install


def _in_a_run(id: str, symptom: str, keys: str) -> None:
    """Declares what a run notices too that is saved between two steps."""
    fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l1", must_fail=["RS-1-01", "RS-2-01"])(
        _not_restored(keys)
    )


def _in_a_window(id: str, symptom: str, keys: str) -> None:
    """Declares what a run notices too that is saved in the middle of a window, with its callbacks."""
    fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l1", must_fail=["RS-1-01", "RS-2-02"])(
        _not_restored(keys)
    )


def _seen_alone(id: str, symptom: str, keys: str) -> None:
    """Declares what changes no number of the runs here."""
    fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l1", must_fail=["RS-1-01"])(
        _not_restored(keys)
    )


_in_a_run(
    "parameters-fresh", "Behind a restart the loss is that of untrained weights.", r"model\.layers\.\d\.up\.weight"
)
_in_a_run("buffers-fresh", "Behind a restart running statistics begin anew.", r"model\.calls$")
_in_a_run("first-moment-lost", "The loss jumps a little behind each restart.", r"optimizer\.state\..*\.exp_avg$")
_in_a_run("second-moment-lost", "The loss jumps up behind each restart.", r"optimizer\.state\..*\.exp_avg_sq$")
_in_a_run("update-count-lost", "AdamW corrects its bias anew behind each restart.", r"optimizer\.state\..*\.step$")
_in_a_run(
    "learning-rates-of-configuration",
    "The first step behind a restart has the learning rate of the very first step.",
    r"optimizer\.param_groups\..*\.lr$",
)
_in_a_run(
    "betas-of-configuration",
    "Betas that were changed during the run are the old ones behind a restart.",
    r"optimizer\.param_groups\..*\.betas$",
)
_in_a_run(
    "weight-decay-of-configuration",
    "Weight decay that was changed during the run is the old one behind a restart.",
    r"optimizer\.param_groups\..*\.weight_decay$",
)
_in_a_run("schedule-starts-anew", "The warm-up begins again behind each restart.", r"scheduler\.")
_in_a_run("full-learning-rates-lost", "A group has the learning rate of the others.", r"scheduler\.base_lrs")
_in_a_run("loss-scale-fresh", "Behind a restart the loss scale is the first one again.", r"scaler\.scale$")
_in_a_run("growth-count-lost", "With restarts in short order the loss scale never grows.", r"scaler\._growth_tracker$")
_in_a_run("data-from-the-start", "Rows of the epoch's begin are seen once more.", r"data\.position$")
_in_a_run("epoch-lost", "Behind a restart an epoch's order is that of the first.", r"data\.epoch$")
_in_a_run("order-of-another-seed", "Some rows of an epoch come twice and some never.", r"data\.seed$")
_in_a_run(
    "pytorch-numbers-lost",
    "Dropout behind a restart repeats the masks of the run's begin.",
    r"rank_\d+\.random\.torch$",
)
_in_a_run("python-numbers-lost", "Augmentation by Python's generator repeats itself.", r"rank_\d+\.random\.python\.")
_in_a_run("numpy-numbers-lost", "Augmentation by NumPy's generator repeats itself.", r"rank_\d+\.random\.numpy\.")
_seen_alone(
    "cached-normal-lost",
    "The first normal number behind a restart is another one.",
    r"rank_\d+\.random\.(python\.gauss|numpy\.rest)",
)
_in_a_run("streams-lost", "Numbers of named streams repeat themselves.", r"rank_\d+\.random\.streams\.")
_in_a_window(
    "window-gradients-lost",
    "The step behind a restart is smaller: a part of its rows does not count.",
    r"gradients\.",
)
_in_a_window(
    "window-loss-lost",
    "The loss of the step behind a restart is too small, and its gradients are right.",
    r"rank_\d+\.window_loss$",
)
_in_a_window(
    "window-counted-anew",
    "The step behind a restart has more micro-batches than others.",
    r"progress\.micro_step$",
)
_in_a_run("steps-counted-anew", "A run that restarts trains for longer.", r"progress\.global_step$")
_in_a_window(
    "best-metric-lost",
    "A worse model is taken for the best one behind a restart.",
    r"callbacks\.best_metric\.",
)
_in_a_window(
    "running-mean-lost",
    "The first record behind a restart is the mean of fewer steps.",
    r"callbacks\.logging\.",
)
_in_a_run("frozen-trained-on", "A frozen parameter moves behind a restart.", r"frozen\.")
