"""Faults of optimizers on torch_native: what a chain's state dict holds, and what comes back of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import state_dict as pytorchs

from hyper_parallel_tests.faults import Patch, fault

_CHAIN = "hyper_parallel_tests.engines.torch_native.optimizer.chain"
_READER = f"{_CHAIN}:_Reader"
_CHAINED = f"{_CHAIN}:ChainedOptimizer"


@fault(
    id="op-state-loaded-by-order",
    symptom="After a resume with parameters in another order, averages of parameters of one shape have changed places.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def state_loaded_by_order(patch: Patch) -> None:
    @patch.around(f"{_READER}.numbered", parameters=("self", "optimizer", "names"))
    def numbered(original: Any, self: Any, optimizer: Any, names: Any) -> Any:
        found = original(self, optimizer, names)
        state, groups = found["state"], found["param_groups"]
        shapes = {number: _shape(one) for number, one in state.items()}
        for number in [number for group in groups for number in group["params"]][:-1]:
            if shapes.get(number) and shapes.get(number) == shapes.get(number + 1):
                patch.reached()
                state[number], state[number + 1] = state[number + 1], state[number]
        return found


def _shape(state: dict[str, Any]) -> Any:
    return max((one.shape for one in state.values() if isinstance(one, Tensor)), key=len, default=None)


def _change_values(patch: Patch, change: Any) -> None:
    """Has `change(value, loaded)` stand for a loaded value, unless it is None."""

    @patch.around(f"{_READER}._value", parameters=("self", "key", "parameter"))
    def value(original: Any, self: Any, key: str, parameter: Any) -> Any:
        loaded = original(self, key, parameter)
        changed = change(self._flat[key], loaded)
        if changed is None:
            return loaded
        patch.reached()
        return changed


@fault(
    id="op-count-of-steps-lost",
    symptom="After a resume AdamW's first steps are far too long: they are corrected for a start that was long ago.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def count_of_steps_lost(patch: Patch) -> None:
    _change_values(patch, lambda _, loaded: loaded.zero_() if isinstance(loaded, Tensor) and not loaded.ndim else None)


@fault(
    id="op-loaded-state-not-copied",
    symptom="A state dict that is loaded twice has changed in between.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def loaded_state_not_copied(patch: Patch) -> None:
    _change_values(patch, lambda value, loaded: value if isinstance(loaded, Tensor) else None)


@fault(
    id="op-options-not-loaded",
    symptom="After a resume the learning rate is the one of the start.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def options_not_loaded(patch: Patch) -> None:
    @patch.around(f"{_READER}._options", parameters=("self", "group", "names"))
    def options(original: Any, self: Any, group: Any, names: Any) -> Any:
        original(self, group, names)
        patch.reached()
        return {key: value for key, value in group.items() if key != "params"}


def _unseen(patch: Patch, what: str) -> None:
    """Has one kind of misfit not be told."""

    @patch.around(f"{_READER}.check", parameters=("self",))
    def check(original: Any, self: Any) -> None:
        if getattr(self, what):
            patch.reached()
            getattr(self, what).clear()
        original(self)


@fault(
    id="op-unknown-state-ignored",
    symptom="State of a renamed parameter is dropped, and nobody says so.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def unknown_state_ignored(patch: Patch) -> None:
    _unseen(patch, "_left")


@fault(
    id="op-missing-state-ignored",
    symptom="A parameter whose state is not in the checkpoint fails in the next step, or starts anew.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def missing_state_ignored(patch: Patch) -> None:
    _unseen(patch, "_missing")


@fault(
    id="op-half-loaded",
    symptom="A state dict that does not fit is refused, and one of the optimizers has it.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def half_loaded(patch: Patch) -> None:
    @patch.around(f"{_READER}.numbered", parameters=("self", "optimizer", "names"))
    def numbered(original: Any, self: Any, optimizer: Any, names: Any) -> Any:
        found = original(self, optimizer, names)
        if not self._missing and not self._wrong:
            patch.reached()
            optimizer.load_state_dict(found)
        return found


@fault(
    id="op-asking-for-state-makes-it",
    symptom="A checkpoint before the first step makes averages of zeros and counts a step.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def asking_for_state_makes_it(patch: Patch) -> None:
    @patch.around(f"{_CHAINED}.state_dict", parameters=("self",))
    def state_dict(original: Any, self: Any) -> Any:
        for optimizer in self.optimizers_dict.values():
            if not optimizer.state:
                patch.reached()
                pytorchs._init_optim_state(optimizer)
        return original(self)


@fault(
    id="op-chain-clears-the-first",
    symptom="Gradients of all parameters but the first optimizer's pile up from step to step.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def chain_clears_the_first(patch: Patch) -> None:
    @patch.around(f"{_CHAINED}.zero_grad", parameters=("self", "set_to_none"))
    def zero_grad(_: Any, self: Any, set_to_none: bool = True) -> None:
        first, *others = self.optimizers_dict.values()
        first.zero_grad(set_to_none)
        if others:
            patch.reached()


@fault(
    id="op-shared-parameter-in-two-optimizers",
    symptom="A parameter that two optimizers were given is stepped by both.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def shared_parameter_in_two_optimizers(patch: Patch) -> None:
    @patch.around(f"{_CHAINED}.__init__", parameters=("self", "model", "optimizers"))
    def init(original: Any, self: Any, model: Any, optimizers: Any) -> None:
        try:
            original(self, model, optimizers)
        except ValueError as error:
            if "stepped by both" not in str(error):
                raise
            patch.reached()
