"""Faults of optimizers on torch_native: state and options that are loaded in part, and names that go astray."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_CHAIN = "hyper_parallel_tests.engines.torch_native.optimizer.chain"
_LOAD = f"{_CHAIN}:ChainedOptimizer.load_state_dict"
_OPTIONS = f"{_CHAIN}:_Reader._options"


@fault(
    id="op-trained-state-stays",
    symptom="Going back to a checkpoint within a run keeps the averages of the steps since.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def trained_state_stays(patch: Patch) -> None:
    @patch.around(_LOAD, parameters=("self", "state_dict"))
    def load(original: Any, self: Any, state_dict: Any) -> None:
        trained = {name: dict(one.state) for name, one in self.optimizers_dict.items()}
        original(self, state_dict)
        for name, one in self.optimizers_dict.items():
            for parameter, state in trained[name].items():
                if state and one.state.get(parameter):
                    patch.reached()
                    one.state[parameter] = state


@fault(
    id="op-load-adds-to-state",
    symptom="Going back to the start keeps averages: a parameter that has no state in a checkpoint keeps what it has.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def load_adds_to_state(patch: Patch) -> None:
    @patch.around(_LOAD, parameters=("self", "state_dict"))
    def load(original: Any, self: Any, state_dict: Any) -> None:
        trained = {name: dict(one.state) for name, one in self.optimizers_dict.items()}
        original(self, state_dict)
        for name, one in self.optimizers_dict.items():
            for parameter, state in trained[name].items():
                if state and not one.state.get(parameter):
                    patch.reached()
                    one.state[parameter] = state


def _not_loaded(patch: Patch, *names: str) -> None:
    """Has some options be those that the group had before."""

    @patch.around(_OPTIONS, parameters=("self", "group", "names"))
    def options(original: Any, self: Any, group: Any, given: Any) -> Any:
        found = original(self, group, given)
        for name in names:
            if name in found:
                patch.reached()
                found[name] = group[name]
        return found


@fault(
    id="op-decay-not-loaded",
    symptom="After a resume weights decay as at the start of the run.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def decay_not_loaded(patch: Patch) -> None:
    _not_loaded(patch, "weight_decay")


@fault(
    id="op-averages-settings-not-loaded",
    symptom="After a resume AdamW averages over other numbers of steps.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def averages_settings_not_loaded(patch: Patch) -> None:
    _not_loaded(patch, "betas", "eps")


@fault(
    id="op-muon-settings-not-loaded",
    symptom="After a resume Muon has the momentum and the iterations of its defaults.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def muon_settings_not_loaded(patch: Patch) -> None:
    _not_loaded(patch, "momentum", "nesterov", "ns_steps", "matched_adamw_rms")


@fault(
    id="op-empty-group-loses-options",
    symptom="A group without parameters has None for every option after a load, and a schedule fails on it.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def empty_group_loses_options(patch: Patch) -> None:
    @patch.around(_OPTIONS, parameters=("self", "group", "names"))
    def options(original: Any, self: Any, group: Any, names: Any) -> Any:
        found = original(self, group, names)
        if names:
            return found
        patch.reached()
        return dict.fromkeys(found)


@fault(
    id="op-wrappers-in-names",
    symptom="A checkpoint of a run with activation checkpointing does not load into one without.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def wrappers_in_names(patch: Patch) -> None:
    @patch.around(f"{_CHAIN}:bare_names", parameters=("model",))
    def names(original: Any, model: Any) -> Any:
        found = {parameter: name for name, parameter in model.named_parameters()}
        if found != original(model):
            patch.reached()
        return found
