"""Faults of optimizers on torch_native: steps of divided parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.optimizer"
_MUON = f"{_OURS}.muon"


@fault(
    id="op-newton-schulz-of-a-shard",
    symptom="The more ranks, the less training with Muon is that of a single card: each rank orthogonalises its rows.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
    ranks="all",
)
def newton_schulz_of_a_shard(patch: Patch) -> None:
    @patch.around(f"{_MUON}:orthogonalised", parameters=("direction", "ns_steps"))
    def orthogonalised(original: Any, direction: Tensor, ns_steps: int) -> Tensor:
        if not isinstance(direction, DTensor):
            return original(direction, ns_steps)
        patch.reached()
        own = direction.to_local()
        found = original(own, ns_steps) if own.numel() else own
        layout = {"shape": direction.shape, "stride": direction.stride()}
        return DTensor.from_local(found, direction.device_mesh, direction.placements, run_check=False, **layout)


@fault(
    id="op-momentum-on-the-first-rank-alone",
    symptom="Rows of all ranks but the first are stepped without momentum.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def momentum_on_the_first_rank_alone(patch: Patch) -> None:
    @patch.around(f"{_MUON}:follow", parameters=("momentum", "grad", "rate", "nesterov"))
    def follow(original: Any, momentum: Tensor, grad: Tensor, rate: float, nesterov: bool) -> Tensor:
        if patch.rank and isinstance(momentum, DTensor):
            patch.reached()
            momentum.to_local().zero_()
        return original(momentum, grad, rate, nesterov)


@fault(
    id="op-momentum-whole-on-each-rank",
    symptom="Training is right, and each rank holds the momentum of the whole model.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def momentum_whole_on_each_rank(patch: Patch) -> None:
    @patch.around(f"{_MUON}:Muon._update", parameters=("self", "parameter", "grad", "group"))
    def update(original: Any, self: Any, parameter: Tensor, grad: Tensor, group: Any) -> None:
        original(self, parameter, grad, group)
        momentum = self.state[parameter]["momentum_buffer"]
        if isinstance(momentum, DTensor):
            patch.reached()
            self.state[parameter]["momentum_buffer"] = momentum.full_tensor()


def _around_update(patch: Patch, change: Any) -> None:
    """Has `change(parameter, group)` follow each update by Muon."""

    @patch.around(f"{_MUON}:Muon._update", parameters=("self", "parameter", "grad", "group"))
    def update(original: Any, self: Any, parameter: Tensor, grad: Tensor, group: Any) -> None:
        original(self, parameter, grad, group)
        patch.reached()
        change(parameter, group)


@fault(
    id="op-weight-decay-twice",
    symptom="Weights that Muon steps shrink twice as fast as they should.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def weight_decay_twice(patch: Patch) -> None:
    _around_update(patch, lambda parameter, group: parameter.mul_(1 - group["lr"] * group["weight_decay"]))


@fault(
    id="op-weight-decay-coupled",
    symptom="Decay goes through AdamW's averages, so that it hardly shows where gradients are large.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def weight_decay_coupled(patch: Patch) -> None:
    def coupled(*args: Any, **options: Any) -> torch.optim.Optimizer:
        patch.reached()
        return torch.optim.Adam(*args, **options)

    patch.replace(f"{_OURS}:AdamW", lambda _: coupled)
    patch.replace(f"{_OURS}.grouping:_MADE_BY", lambda made_by: made_by | {"adamw": coupled})


@fault(
    id="op-unused-parameters-decayed",
    symptom="Layers that take no part in a step shrink.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def unused_parameters_decayed(patch: Patch) -> None:
    @patch.around(f"{_MUON}:Muon.step", parameters=("self", "closure"))
    def step(original: Any, self: Any, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    patch.reached()
                    one.data.mul_(1 - group["lr"] * group["weight_decay"])
        return original(self, closure)


@fault(
    id="op-tied-weight-stepped-twice",
    symptom="A shared embedding moves twice as far as it should.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def tied_weight_stepped_twice(patch: Patch) -> None:
    @patch.around(f"{_OURS}:get_hyper_optimizer", parameters=("model",))
    def make(original: Any, model: Any, **options: Any) -> Any:
        chain = original(model, **options)
        seen = [one for _, one in model.named_parameters(remove_duplicate=False)]
        for group in chain.param_groups:
            for one in list(group["params"]):
                if sum(one is other for other in seen) > 1:
                    patch.reached()
                    group["params"].append(one)
        return chain


@fault(
    id="op-options-change-places",
    symptom="Muon's matrices are stepped with AdamW's learning rate, and the other way round.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def options_change_places(patch: Patch) -> None:
    @patch.around(f"{_OURS}:get_hyper_optimizer", parameters=("model",))
    def make(original: Any, model: Any, *, muon: Any = None, adamw: Any = None) -> Any:
        if muon and adamw:
            patch.reached()
            muon, adamw = muon | {"lr": adamw["lr"]}, adamw | {"lr": muon.get("lr", 2e-2)}
        return original(model, muon=muon, adamw=adamw)
