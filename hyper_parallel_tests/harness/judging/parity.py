"""Trains a candidate and its baseline alike, and holds loss, norm and tensors of the one to the other's.

candidate = train(sharded, batches_of_this_rank, loss, optimizer=sgd, average=mean_over_ranks)
baseline = train_baseline(single_card, full_batches, loss, optimizer=sgd)
assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyper_parallel_tests.harness.judging import clean
from hyper_parallel_tests.harness.judging.comparison import Comparison, VacuousComparison, compare_numbers, full
from hyper_parallel_tests.harness.judging.findings import Findings, compare_named, on_rank
from hyper_parallel_tests.harness.judging.shards import Shards
from hyper_parallel_tests.harness.judging.tolerances import Tolerance, ledger, verified

__all__ = [
    "Step",
    "Track",
    "VacuousComparison",
    "assert_close",
    "assert_differs",
    "assert_equal",
    "assert_parity",
    "mean_over_ranks",
    "train",
]

NamedTensors = Iterable[tuple[str, Tensor]]

# Gradients this many tolerances large at best are too small for the tolerance to judge.
_VISIBLE = 10.0


@dataclass(frozen=True)
class Step:
    """One training step, everything in full and on the CPU.

    Attributes:
        loss: the scalar loss.
        norm: global 2-norm of all gradients, or what `before_update` returned.
        grads: name -> gradient as the optimizer reads it; parameters without one are not in it.
        params: name -> parameter after the update; empty where nothing updates.
    """

    loss: float
    norm: float
    grads: dict[str, Tensor]
    params: dict[str, Tensor]


@dataclass(frozen=True)
class Track:
    """What a training run left behind.

    Attributes:
        steps: one entry a step.
        start: name -> parameter before the first step.
        shards: name -> how the parameter lies on the ranks, for those that are sharded.
        buffers: name -> buffer after the last step.
        clean: whether it was trained where no engine has changed torch, by `train_baseline` or in a function that
            `in_clean_process` called: nothing else is a baseline.
    """

    steps: tuple[Step, ...]
    start: dict[str, Tensor]
    shards: dict[str, Shards] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    clean: bool = False

    @property
    def updates(self) -> bool:
        """Whether an optimizer took part."""
        return bool(self.steps and self.steps[0].params)

    def only(self, names: Collection[str]) -> Track:
        """The run without the other parameters; losses and norms stay those of all."""

        def kept(tensors: dict[str, Any]) -> dict[str, Any]:
            return {name: one for name, one in tensors.items() if name in names}

        steps = tuple(replace(one, grads=kept(one.grads), params=kept(one.params)) for one in self.steps)
        return replace(self, steps=steps, start=kept(self.start), shards=kept(self.shards))

    def __str__(self) -> str:
        grads = len(self.steps[0].grads) if self.steps else 0
        return f"{len(self.steps)} steps {'with' if self.updates else 'without'} optimizer, {grads} gradients"


def train(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    *,
    optimizer: torch.optim.Optimizer | Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None,
    average: Callable[[Tensor], Tensor] | None = None,
    backward: Callable[[Tensor], object] | None = Tensor.backward,
    before_update: Callable[[nn.Module], Tensor | float | None] | None = None,
    params: Callable[[], NamedTensors] | None = None,
    grads: Callable[[], NamedTensors] | None = None,
) -> Track:
    """Train `model` one step a batch and record every step in full; all ranks call this together.

    Args:
        model: any module, wrapped by an engine or not; names are those below DDP's wrapper.
        batches: one entry a step, at least two where an optimizer updates.
        loss: gives a scalar tensor from the model and a batch.
        optimizer: an optimizer of the model's parameters, or a function that makes one from them.
        average: turns this rank's loss into the one to compare: `mean_over_ranks` if each has its own batch.
        backward: runs backward from the loss, where the engine wants its own way; None where `loss` has already
            done it, as over micro-batches.
        before_update: called on the model between backward and update, e.g. to clip; a norm that it returns
            is the step's global norm. The gradients are recorded after it.
        params, grads: give (name, tensor) pairs where the optimizer reads something else than the model's
            parameters and their `.grad`.

    Raises:
        ValueError: too few batches to see the optimizer's second step.
    """
    if optimizer is not None and len(batches) < 2:
        raise ValueError(f"2 steps or more show whether the update reaches the next forward, got {len(batches)}")
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    params = params or inner.named_parameters
    grads = grads or (lambda: ((name, param.grad) for name, param in params() if param.grad is not None))
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(inner.parameters())
    start = _full(params())
    shards = {name: layout for name, param in params() if (layout := Shards.of(param)) is not None}
    steps = []
    for batch in batches:
        model.zero_grad(set_to_none=True)
        value = loss(model, batch)
        if backward is not None:
            backward(value)
        norm = before_update(model) if before_update is not None else None
        found = _full(grads())
        if optimizer is not None:
            optimizer.step()
        shown = value.detach() if average is None else average(value.detach())
        steps.append(
            Step(
                loss=float(full(shown)),
                norm=_norm(found) if norm is None else float(full(torch.as_tensor(norm))),
                grads=found,
                params=_full(params()) if optimizer is not None else {},
            )
        )
    return Track(tuple(steps), start, shards, _full(inner.named_buffers()), clean.inside())


def mean_over_ranks(value: Tensor) -> Tensor:
    """The mean of a tensor over all ranks of the default process group; `value` stays as it is."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def assert_parity(
    candidate: Track, baseline: Track, tolerance: Tolerance, *, zero_because: str = "", own_because: str = ""
) -> None:
    """Hold a candidate's run to its baseline's: loss, global norm and every tensor, each by itself.

    Args:
        candidate: run of the engine under test.
        baseline: single-card fp32 or DDP run on the same data, by `train_baseline`.
        tolerance: the configuration's row of the ledger.
        zero_because: why all gradients may rightly be zero; without it such a comparison is an error.
        own_because: why another run of the engine itself may stand for a baseline; without it a run that is not
            from a clean process is an error.

    Raises:
        AssertionError: one of the three differs; the message has what parted first and the verdict on all three.
        VacuousComparison: nothing is compared, all gradients are zero or too small for the tolerance, the
            optimizer moved nothing, or the baseline was trained where the engine may have changed torch.
        TypeError: the tolerance is not from the ledger.
    """
    tolerance = verified(tolerance)
    _refuse_vacuous(candidate, baseline, tolerance, zero_because)
    if not baseline.clean and not own_because:
        raise VacuousComparison(
            "the baseline was trained in the rank, where the engine may have changed torch: train it by "
            "train_baseline(...), or say own_because=... if one run of the engine is rightly held to another"
        )
    if len(candidate.steps) != len(baseline.steps) or candidate.updates != baseline.updates:
        raise AssertionError(f"the runs are not alike: candidate {candidate}, baseline {baseline}")
    loss, norm, tensors = Findings("loss", []), Findings("norm", []), Findings("tensors", [])
    parted: list[str] = []

    def judge(kind: Findings, what: str, outcome: Comparison) -> None:
        kind.outcomes.append((what, outcome))
        if outcome.problem:
            parted.append(what)

    # In the order in which the one follows from the other, so that the first to part is nearest to the cause.
    for name, outcome in compare_named(candidate.start, baseline.start, tolerance, candidate.shards):
        judge(tensors, f"parameter {name} at the start", outcome)
    for i, (ours, theirs) in enumerate(zip(candidate.steps, baseline.steps, strict=True)):
        judge(loss, f"loss at step {i}", compare_numbers(ours.loss, theirs.loss, tolerance.loss))
        for name, outcome in compare_named(ours.grads, theirs.grads, tolerance, candidate.shards):
            judge(tensors, f"gradient of {name} at step {i}", outcome)
        judge(norm, f"norm at step {i}", compare_numbers(ours.norm, theirs.norm, tolerance.norm))
        for name, outcome in compare_named(ours.params, theirs.params, tolerance, candidate.shards):
            judge(tensors, f"parameter {name} after step {i}", outcome)
    if not parted:
        return
    report = [f"no parity with {tolerance!r} over {len(baseline.steps)} steps, judged{on_rank()}"]
    report += [f"first to part: {parted[0]}"]
    report += [one.line() for one in (loss, norm, tensors)]
    report += [f"{one.name}: {one.first()}" for one in (loss, norm, tensors) if one.bad]
    if tensors.bad and not norm.bad:
        report.append("the norms agree although the elements do not: look for swapped, misplaced or cancelling parts")
    raise AssertionError("\n".join(report))


def assert_close(
    actual: Any, expected: Any, tolerance: Tolerance, *, what: str = "the tensor", zero_because: str = ""
) -> None:
    """Hold a tensor, or a dict or sequence of tensors, to what it should be, by the ledger's `tensor` number.

    Args:
        actual, expected: tensor, number, dict or sequence of them, of one structure; sharded tensors are
            gathered, so all ranks call this. Shapes and dtypes must be equal, integers and booleans exactly.
        tolerance: the configuration's row of the ledger.
        what: names the subject in the message.
        zero_because: why everything may rightly be zero or empty; without it such a comparison is an error.

    Raises:
        AssertionError: they differ, or one has tensors that the other lacks.
        VacuousComparison: there is nothing to compare, or all of it is zero.
        TypeError: the tolerance is not from the ledger.
    """
    findings = _compare_all(actual, expected, tolerance, what, zero_because)
    if findings.bad:
        raise AssertionError(f"{what} differs with {tolerance!r}, judged{on_rank()}\n{findings.first()}")


def assert_equal(actual: Any, expected: Any, *, what: str = "the tensor") -> None:
    """Hold a tensor, or a dict or sequence of tensors, to exactly what it should be, as data that is only moved.

    Args:
        actual, expected, what: as for `assert_close`. Zeros and empty tensors count: no tolerance lets them pass.

    Raises:
        AssertionError: they differ, or one has tensors that the other lacks.
    """
    assert_close(actual, expected, ledger["exact"], what=what, zero_because="nothing is allowed to differ")


def assert_differs(actual: Any, other: Any, tolerance: Tolerance, *, what: str = "the tensor") -> None:
    """The opposite of `assert_close`: each tensor of the one has an element out of tolerance of the other's.

    Raises:
        AssertionError: tensors agree that must not; the message names them.
    """
    findings = _compare_all(actual, other, tolerance, what, "")
    same = [name for name, outcome in findings.outcomes if not outcome.problem]
    if same:
        raise AssertionError(f"{', '.join(same)} must differ but agrees with {tolerance!r}, judged{on_rank()}")


def _compare_all(actual: Any, expected: Any, tolerance: Tolerance, what: str, zero_because: str) -> Findings:
    tolerance = verified(tolerance)
    named = _named(actual, what)
    shards = {name: layout for name, tensor in named.items() if (layout := Shards.of(tensor)) is not None}
    got, wanted = _full(named.items()), _full(_named(expected, what).items())
    if not zero_because and not any(tensor.any() for tensor in (*got.values(), *wanted.values())):
        raise VacuousComparison(f"{what}: only zeros on both sides, or nothing; if right, say zero_because=...")
    return Findings("tensors", list(compare_named(got, wanted, tolerance, shards)))


def _named(value: Any, what: str) -> dict[str, Tensor]:
    """Tensors of a tensor, dict or sequence by a name that reads well in a report."""
    if isinstance(value, Tensor):
        return {what: value}
    if isinstance(value, (bool, int, float)):
        return {what: torch.tensor(value)}
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    return {inner: one for key, part in pairs for inner, one in _named(part, f"{what}[{key}]").items()}


def _full(pairs: NamedTensors) -> dict[str, Tensor]:
    return {name: full(tensor) for name, tensor in pairs}


def _norm(tensors: Mapping[str, Tensor]) -> float:
    """Global 2-norm over all tensors, in fp64."""
    return math.hypot(*(float(torch.linalg.vector_norm(one, dtype=torch.float64)) for one in tensors.values()))


def _refuse_vacuous(candidate: Track, baseline: Track, tolerance: Tolerance, zero_because: str) -> None:
    if candidate is baseline:
        raise VacuousComparison("the candidate is the baseline: train the baseline on one card or under DDP")
    if not baseline.steps or not any(step.grads for step in baseline.steps):
        raise VacuousComparison(f"the baseline has no gradient to compare with: {baseline}")
    if zero_because:
        return
    grads = [grad for step in baseline.steps for grad in step.grads.values() if grad.numel()]
    largest = max((float(grad.abs().max()) for grad in grads), default=0.0)
    small = all(step.norm <= tolerance.norm for step in candidate.steps)
    if small and largest <= _VISIBLE * tolerance.tensor:
        raise VacuousComparison(
            f"gradients of at most {largest:.3g} on both sides, so {tolerance!r} would pass zeros too; "
            "scale the loss up or, if zero is right, say zero_because=..."
        )
    if baseline.updates and all(torch.equal(baseline.start[k], v) for k, v in baseline.steps[-1].params.items()):
        raise VacuousComparison("the baseline's optimizer moved no parameter; if right, say zero_because=...")
