"""A run with the monitor: what it told against one card and by hand, and against a run without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyper_parallel_tests.domains.monitor.setting import (
    STEPS,
    Run,
    batches,
    by_hand,
    everybody,
    joined,
    run_of,
    sgd,
    whole_loss,
    whole_network,
)
from hyper_parallel_tests.harness import World, assert_close, assert_parity, train, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track

__all__ = ["check_bits", "check_told"]


class Told(NamedTuple):
    """One step: what the monitor told, and what was found beside it."""

    record: Any
    local_norms: dict[str, float]
    local_loss: float | None


def check_told(engine: Any, world: World, ledger: Any, degrees: dict[str, int]) -> None:
    """Global norms are those of one card, local norms and losses those that this rank has."""
    told: list[Told] = []
    run = run_of(engine, world, degrees)
    candidate = trained(run, world, run.monitor(engine), told)
    names = {name for name, _ in run.model.named_parameters()}
    baseline = train_baseline(whole_network(world.device), batches(world.device), whole_loss, optimizer=sgd)
    assert [one.record.step for one in told] == list(range(STEPS))
    for one in told:
        assert one.record.local_loss == one.local_loss
        assert_close(
            numbers(one.record.local_norms), numbers(one.local_norms), ledger["collectives_fp64"], what="norms"
        )
        expected = {"all": joined(one.local_norms.values())}
        assert_close(
            numbers({"all": one.record.local_norm}), numbers(expected), ledger["collectives_fp64"], what="norm"
        )
    norms = [one.record.global_norm for one in told]
    assert everybody(norms) == [norms] * world.size, "ranks tell other global norms"
    assert_parity(candidate, baseline.only(names), ledger["tp_fsdp_fp32"])


def check_bits(engine: Any, world: World, ledger: Any, degrees: dict[str, int]) -> None:
    """Losses, gradients, parameters and random states are, bit for bit, those of a run without the monitor."""
    tracks, states = [], []
    for monitored in (False, True):
        torch.manual_seed(0)
        run = run_of(engine, world, degrees)
        tracks.append(trained(run, world, run.monitor(engine) if monitored else None, []))
        states.append(torch.get_rng_state())
    off, on = (without_norms(one) for one in tracks)
    assert_parity(on, off, ledger["exact"], own_because="the monitor on and off")
    assert_close(states[1], states[0], ledger["exact"], what="random state")


def trained(run: Run, world: World, monitor: Any, told: list[Told]) -> Track:
    """Trains; a monitor is asked where clipping would stand, and its norm is the step's."""
    losses: list[float | None] = []

    def loss(_: Any, batch: Any) -> Tensor:
        own = run.step(run.laid.part(batch))
        losses.append(None if own is None else own.item())
        there = [one for one in everybody(losses[-1]) if one is not None]
        return torch.tensor(sum(there) / len(there))

    def asked(_: Any) -> float:
        if monitor is None:
            return 0.0
        given = None if losses[-1] is None else torch.tensor(losses[-1])
        record = monitor.record(given)
        told.append(Told(record, by_hand(run.model), losses[-1]))
        return record.global_norm

    return train(run.model, batches(world.device), loss, optimizer=sgd, backward=None, before_update=asked)


def without_norms(track: Track) -> Track:
    """The run without the norms that only a monitor tells."""
    return replace(track, steps=tuple(replace(one, norm=0.0) for one in track.steps))


def numbers(values: dict[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor(one, dtype=torch.float64) for name, one in values.items()}
