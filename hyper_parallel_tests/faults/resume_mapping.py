"""Faults of resume on torch_native: state that finds the wrong parameter, is made up, or stays."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict as pytorchs

from hyper_parallel_tests.faults import Patch, fault

_TRAINER = "hyper_parallel_tests.engines.torch_native.trainer"


@fault(
    id="resume-optimizer-state-by-position",
    symptom="After modules were registered in another order, parameters have each other's momentum.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def optimizer_state_by_position(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.optimizer_state:parameter_names", parameters=("model",))
    def names(original: Any, model: Any) -> dict[str, Any]:
        patch.reached()
        counts: Counter[str] = Counter()
        found = {}
        for parameter in original(model).values():
            shape = "x".join(map(str, parameter.shape))
            found[f"{shape}-{counts[shape]}"] = parameter
            counts[shape] += 1
        return found


@fault(
    id="resume-settings-of-first-group",
    symptom="Behind a restart all groups have the settings of the first.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def settings_of_first_group(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.state:set_optimizer_state", parameters=("model", "optimizer", "state"))
    def put(original: Any, model: Any, optimizer: Any, state: Any) -> None:
        original(model, optimizer, state)
        first, *others = optimizer.param_groups
        for group in others:
            patch.reached()
            group |= {key: value for key, value in first.items() if key != "params"}


@fault(
    id="resume-old-optimizer-state-stays",
    symptom="A trainer that goes back to its start keeps the momentum of its end.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def old_optimizer_state_stays(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.state:set_optimizer_state", parameters=("model", "optimizer", "state"))
    def put(original: Any, model: Any, optimizer: Any, state: Any) -> None:
        before = dict(optimizer.state)
        original(model, optimizer, state)
        for parameter, values in before.items():
            if parameter not in optimizer.state:
                patch.reached()
                optimizer.state[parameter] = values


@fault(
    id="resume-save-takes-a-step",
    symptom="A save before the first step shifts the optimizer's bias correction by one.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def save_takes_a_step(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.state:optimizer_state", parameters=("model", "optimizer"))
    def state(original: Any, model: Any, optimizer: Any) -> dict[str, Any]:
        if not optimizer.state:
            patch.reached()
        pytorchs._init_optim_state(optimizer)
        return original(model, optimizer)


@fault(
    id="resume-old-gradients-stay",
    symptom="A trainer that goes back in the middle of a window adds the gradients of what it left.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def old_gradients_stay(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.state:restore", parameters=("trainer", "folder", "reader"))
    def restore(original: Any, trainer: Any, folder: Any, reader: Any) -> None:
        before = [(one, one.grad) for one in trainer.model.parameters()]
        original(trainer, folder, reader)
        for parameter, gradient in before:
            if parameter.grad is None and gradient is not None:
                patch.reached()
                parameter.grad = gradient


@fault(
    id="resume-save-draws-a-number",
    symptom="Runs with checkpoints have other dropout masks than runs without.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def save_draws_a_number(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.loop:BaseTrainer.state_dict", parameters=("self",))
    def state(original: Any, self: Any) -> dict[str, Any]:
        found = original(self)
        torch.rand(())
        patch.reached()
        return found
