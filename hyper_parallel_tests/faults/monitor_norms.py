"""Faults of the precision monitor on torch_native: other norms than there are, and a monitor that takes part."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.monitor"
_MONITOR = f"{_OURS}:TrainingStateMonitor"


@fault(
    id="monitor-local-for-global",
    symptom="Each rank's log has another global norm, and all are too small.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def local_for_global(patch: Patch) -> None:
    @patch.around(f"{_MONITOR}._sum_over_ranks", parameters=("self", "value"))
    def total(_: Any, self: Any, value: float) -> float:
        patch.reached()
        return value


@fault(
    id="monitor-copies-counted-by-rank",
    symptom="The global norm grows with tensor parallelism: norms and biases count on each rank.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def copies_counted_by_rank(patch: Patch) -> None:
    @patch.around(f"{_MONITOR}._is_first_holder", parameters=("self", "parameter"))
    def is_first(original: Any, self: Any, parameter: Any) -> bool:
        if not original(self, parameter):
            patch.reached()
        return True


@fault(
    id="monitor-first-stage-only",
    symptom="The global norm of a pipeline is that of its first stage.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def first_stage_only(patch: Patch) -> None:
    @patch.around(f"{_MONITOR}._is_first_holder", parameters=("self", "parameter"))
    def is_first(original: Any, self: Any, parameter: Any) -> bool:
        if self._stage_dim is None:
            return original(self, parameter)
        patch.reached()
        return self._mesh.get_local_rank(self._stage_dim) == 0 and original(self, parameter)


@fault(
    id="monitor-whole-gradients-as-local",
    symptom="The local norm tells nothing of a rank: it is the whole parameter's on each.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def whole_gradients_as_local(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        if not isinstance(parameter.grad, DTensor):
            return original(parameter)
        patch.reached()
        return parameter.grad.full_tensor().double().square().sum().item()


@fault(
    id="monitor-terms-as-gradient",
    symptom="Where a gradient is still a sum to be made over ranks, the norm is that of one rank's terms.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def terms_as_gradient(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        gradient = parameter.grad
        if not isinstance(gradient, DTensor) or gradient.placements == parameter.placements:
            return original(parameter)
        patch.reached()
        return gradient.to_local().double().square().sum().item()


@fault(
    id="monitor-norms-in-half-precision",
    symptom="With fp16 gradients the global norm is infinite although training goes on.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def norms_in_half_precision(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        gradient = getattr(parameter, "main_grad", None)
        if gradient is None or gradient.dtype is not torch.float16:
            return original(parameter)
        patch.reached()
        return gradient.square().sum().item()


@fault(
    id="monitor-mean-for-local-loss",
    symptom="A rank whose data is bad cannot be found: all tell the mean loss.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
)
def mean_for_local_loss(patch: Patch) -> None:
    @patch.around(f"{_MONITOR}.record", parameters=("self", "loss"))
    def record(original: Any, self: Any, loss: Any = None) -> Any:
        shown = torch.zeros(()) if loss is None else loss.detach().clone()
        torch.distributed.all_reduce(shown)
        patch.reached()
        return original(self, None if loss is None else shown / torch.distributed.get_world_size())


@fault(
    id="monitor-clips",
    symptom="With the monitor on, large gradients are clipped: it is clip_grad_norm_ under another name.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def clips(patch: Patch) -> None:
    @patch.around(f"{_MONITOR}.record", parameters=("self", "loss"))
    def record(original: Any, self: Any, loss: Any = None) -> Any:
        found = original(self, loss)
        patch.reached()
        for one in self._model.parameters():
            if one.grad is not None:
                one.grad.mul_(min(1.0, 0.5 / (found.global_norm + 1e-6)) if found else 1.0)
        return found


@fault(
    id="monitor-rounds-gradients",
    symptom="With the monitor on, gradients lose bits: they go through fp16, for a cheaper reduction.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def rounds_gradients(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        found = original(parameter)
        gradient = parameter.grad
        if gradient is not None:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            patch.reached()
            local.copy_(local.half())
        return found


@fault(
    id="monitor-synchronizes-gradients",
    symptom="With the monitor on, gradients of divided layers are summed over ranks that have other rows of them.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def synchronizes_gradients(patch: Patch) -> None:
    @patch.around(f"{_MONITOR}.record", parameters=("self", "loss"))
    def record(original: Any, self: Any, loss: Any = None) -> Any:
        found = original(self, loss)
        for one in self._model.parameters():
            if isinstance(one.grad, DTensor):
                patch.reached()
                torch.distributed.all_reduce(one.grad.to_local())
        return found


@fault(
    id="monitor-draws-random-numbers",
    symptom="With the monitor on, dropout has other masks: it samples elements for its statistics.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def draws_random_numbers(patch: Patch) -> None:
    @patch.around(f"{_MONITOR}.record", parameters=("self", "loss"))
    def record(original: Any, self: Any, loss: Any = None) -> Any:
        torch.rand(1)
        patch.reached()
        return original(self, loss)


@fault(
    id="monitor-not-finite-hidden",
    symptom="A NaN in one gradient shows in no norm.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def not_finite_hidden(patch: Patch) -> None:
    @patch.around(f"{_OURS}:square_of", parameters=("parameter",))
    def square(original: Any, parameter: Any) -> float:
        found = original(parameter)
        if math.isfinite(found):
            return found
        patch.reached()
        return 0.0


@fault(
    id="monitor-interval-ignored",
    symptom="Every step waits for a reduction although each hundredth is to be recorded.",
    capability="monitor",
    layer="l2",
    must_fail=["MO-2-01"],
    ranks="all",
)
def interval_ignored(patch: Patch) -> None:
    @patch.around(f"{_MONITOR}.__init__", parameters=("self", "model"))
    def make(original: Any, self: Any, model: Any, *, interval: int = 1, **options: Any) -> None:
        original(self, model, interval=interval, **options)
        if interval > 1:
            patch.reached()
            self._interval = 1
