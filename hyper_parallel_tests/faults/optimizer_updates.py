"""Faults of optimizers on torch_native: what a step makes of a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.optimizer"
_MUON = f"{_OURS}.muon"


def _change_counts(patch: Patch, change: Callable[[list[Tensor]], None]) -> None:
    """Has `change(counts of steps)` come before each step of AdamW."""

    class Wrong(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            counts = [state["step"] for state in self.state.values() if "step" in state]
            if counts:
                patch.reached()
                change(counts)
            return super().step(closure)

    patch.replace(f"{_OURS}:AdamW", lambda _: Wrong)


@fault(
    id="op-bias-correction-shared",
    symptom="A parameter that takes part late starts with steps that are too short.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def bias_correction_shared(patch: Patch) -> None:
    def shared(counts: list[Tensor]) -> None:
        most = max(float(one) for one in counts)
        for one in counts:
            one.fill_(most)

    _change_counts(patch, shared)


@fault(
    id="op-bias-correction-lost",
    symptom="AdamW corrects every step as if it were the first.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def bias_correction_lost(patch: Patch) -> None:
    _change_counts(patch, lambda counts: [one.zero_() for one in counts])


@fault(
    id="op-nesterov-ignored",
    symptom="Muon goes along the plain momentum whatever it is told.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def nesterov_ignored(patch: Patch) -> None:
    @patch.around(f"{_MUON}:follow", parameters=("momentum", "grad", "rate", "nesterov"))
    def follow(original: Any, momentum: Tensor, grad: Tensor, rate: float, nesterov: bool) -> Tensor:
        if nesterov:
            patch.reached()
        return original(momentum, grad, rate, False)


@fault(
    id="op-size-by-rows",
    symptom="Steps of wide matrices are too short: the size goes by the rows and not by the longer side.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def size_by_rows(patch: Patch) -> None:
    @patch.around(f"{_MUON}:orthogonalised", parameters=("direction", "ns_steps"))
    def orthogonalised(original: Any, direction: Tensor, ns_steps: int) -> Tensor:
        patch.reached()
        rows, columns = direction.shape
        return original(direction, ns_steps) * math.sqrt(rows / max(rows, columns))


@fault(
    id="op-decay-by-the-size-of-the-step",
    symptom="The larger a matrix, the faster it decays.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def decay_by_the_size_of_the_step(patch: Patch) -> None:
    @patch.around(f"{_MUON}:Muon._update", parameters=("self", "parameter", "grad", "group"))
    def update(original: Any, self: Any, parameter: Tensor, grad: Tensor, group: Any) -> None:
        patch.reached()
        size = group["matched_adamw_rms"] * math.sqrt(max(parameter.shape))
        original(self, parameter, grad, group | {"weight_decay": group["weight_decay"] * size})


@fault(
    id="op-options-of-the-first-group",
    symptom="A group's own learning rate is that of all the groups behind it.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def options_of_the_first_group(patch: Patch) -> None:
    @patch.around(f"{_MUON}:Muon._update", parameters=("self", "parameter", "grad", "group"))
    def update(original: Any, self: Any, parameter: Tensor, grad: Tensor, group: Any) -> None:
        if group is not self.param_groups[0]:
            patch.reached()
        original(self, parameter, grad, self.param_groups[0])


@fault(
    id="op-muon-settings-of-the-first-group",
    symptom="A group's own momentum and iterations are those of the first group.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def muon_settings_of_the_first_group(patch: Patch) -> None:
    @patch.around(f"{_MUON}:Muon._update", parameters=("self", "parameter", "grad", "group"))
    def update(original: Any, self: Any, parameter: Tensor, grad: Tensor, group: Any) -> None:
        first = {name: self.param_groups[0][name] for name in ("momentum", "nesterov", "ns_steps")}
        if group | first != group:
            patch.reached()
        original(self, parameter, grad, group | first)


def _without_gradient(patch: Patch, change: Callable[[Tensor, Tensor, Any], None]) -> None:
    """Has `change(parameter, momentum, group)` come of a step of Muon that has no gradient."""

    @patch.around(f"{_MUON}:Muon.step", parameters=("self", "closure"))
    def step(original: Any, self: Any, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None and one in self.state:
                    patch.reached()
                    change(one.data, self.state[one]["momentum_buffer"], group)
        return original(self, closure)


@fault(
    id="op-momentum-decays-without-a-gradient",
    symptom="An expert that has had no tokens for some steps has lost its momentum.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def momentum_decays_without_a_gradient(patch: Patch) -> None:
    _without_gradient(patch, lambda _, momentum, group: momentum.mul_(group["momentum"]))


@fault(
    id="op-matrices-decay-without-a-gradient",
    symptom="An expert that has had tokens once shrinks in all steps without.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def matrices_decay_without_a_gradient(patch: Patch) -> None:
    _without_gradient(patch, lambda one, _, group: one.mul_(1 - group["lr"] * group["weight_decay"]))


@fault(
    id="op-closure-not-called",
    symptom="Trainers that give their passes as a closure do not train.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def closure_not_called(patch: Patch) -> None:
    @patch.around(f"{_MUON}:Muon.step", parameters=("self", "closure"))
    def step(original: Any, self: Any, closure: Any = None) -> Any:
        if closure is not None:
            patch.reached()
        return original(self)
