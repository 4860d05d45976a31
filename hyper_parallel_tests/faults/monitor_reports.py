"""Faults of the precision monitor on torch_native: what it reads, and the lines that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.monitor"
_RECORD = f"{_OURS}:TrainingStateMonitor.record"


def _line_of(patch: Patch, change: Callable[[Any], dict[str, Any]]) -> None:
    """Has a line be that of another record."""

    @patch.around(f"{_OURS}:format_record", parameters=("record",))
    def line(original: Any, record: Any, names: Any = ()) -> str:
        changed = change(record)
        if changed:
            patch.reached()
        return original(SimpleNamespace(**(vars(record) | changed)), names)


@fault(
    id="monitor-line-swaps-norms",
    symptom="In the log the global norm is a rank's own.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def line_swaps_norms(patch: Patch) -> None:
    _line_of(patch, lambda one: {"global_norm": one.local_norm, "local_norm": one.global_norm})


@fault(
    id="monitor-line-loss-of-zero",
    symptom="Ranks without a loss log one of zero.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def line_loss_of_zero(patch: Patch) -> None:
    _line_of(patch, lambda one: {"local_loss": 0.0} if one.local_loss is None else {})


@fault(
    id="monitor-main-gradient-widened",
    symptom="With the monitor on main gradients are fp32 and take twice the memory.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def main_gradient_widened(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        if getattr(parameter, "main_grad", None) is not None:
            patch.reached()
            parameter.main_grad = parameter.main_grad.float()
        return original(parameter)


@fault(
    id="monitor-main-gradient-none-hides",
    symptom="Before main gradients are there all norms are zero.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def main_gradient_none_hides(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        if getattr(parameter, "main_grad", 0) is not None:
            return original(parameter)
        patch.reached()
        return 0.0


@fault(
    id="monitor-main-gradient-alone-left-out",
    symptom="Where gradients live in main gradients alone, all norms are zero.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def main_gradient_alone_left_out(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        if parameter.grad is not None:
            return original(parameter)
        patch.reached()
        return 0.0


@fault(
    id="monitor-loss-loses-its-graph",
    symptom="With the monitor on a loss cannot be run backward any more.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def loss_loses_its_graph(patch: Patch) -> None:
    @patch.around(_RECORD, parameters=("self", "loss"))
    def record(original: Any, self: Any, loss: Any = None) -> Any:
        found = original(self, loss)
        if loss is not None and loss.requires_grad:
            patch.reached()
            loss.detach_()
        return found


@fault(
    id="monitor-records-hold-graphs",
    symptom="Records hold each step's loss with its graph, and memory grows from step to step.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def records_hold_graphs(patch: Patch) -> None:
    @patch.around(_RECORD, parameters=("self", "loss"))
    def record(original: Any, self: Any, loss: Any = None) -> Any:
        found = original(self, loss)
        if found is None or loss is None:
            return found
        patch.reached()
        return replace(found, local_loss=loss)


@fault(
    id="monitor-small-norms-lost",
    symptom="Late in a training in half precision norms are zero.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def small_norms_lost(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        found = original(parameter)
        if not 0 < found < 2.0**-24:
            return found
        patch.reached()
        return 0.0
