"""Judge of pipeline schedules: runs a table without an engine and says what is wrong with it.

A table has for each rank its actions as text, such as `2F0` or `1SEND_F3` (see the port). `simulate` looks at what a
table contains, then at its order, then at its messages, and at last runs it; it stops at the first defect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from hyper_parallel_tests.domains.pipeline_parallel.actions import Action, BadSchedule, Defect, parse

__all__ = ["Action", "BadSchedule", "Defect", "Run", "assert_runs", "parse", "simulate"]

# What PyTorch's own pictures of schedules take: the whole backward pass is two forward passes long.
_UNITS = {"F": 1, "B": 2, "I": 1, "W": 1}


class _Place(NamedTuple):
    """Where an action stands in a table."""

    rank: int
    position: int


@dataclass(frozen=True)
class Run:
    """What was measured while a table ran.

    Args:
        in_flight: for each rank the most forward passes, over all its stages, whose backward pass was still open.
        makespan: units of time from the first action to the last one.
        bubble_fraction: share of `makespan`, over all ranks, in which they waited.
    """

    in_flight: dict[int, int]
    makespan: int
    bubble_fraction: Fraction


def simulate(
    table: Mapping[int, Sequence[str]],
    *,
    stages: int,
    microbatches: int,
    communication: bool = True,
    limits: Mapping[int, int] | None = None,
    spread: Collection[int] = (),
) -> Run:
    """Runs a table of all ranks and measures it.

    A send blocks its rank until the other one receives, so that what runs here runs with any buffering. Time is counted
    without messages: a rank waits only for what its next computation depends on.

    Args:
        communication: whether sends and receives are to be in the table; if not, none may be.
        limits: for each rank the most micro-batches that may be in flight on it.
        spread: stages that are on several ranks, each of which has some of the micro-batches.

    Raises:
        BadSchedule: the table has a defect.
    """
    order = {rank: [parse(text) for text in table[rank]] for rank in sorted(table)}
    places = _places(order)
    _check_content(places, stages, microbatches, spread)
    _check_order(places)
    messages = _messages(places) if communication else {}
    _check_messages(places, messages)
    _check_channels(order, places, messages)
    _run_blocking(order, places, messages)
    in_flight = {rank: _peak(actions) for rank, actions in order.items()}
    for rank, limit in (limits or {}).items():
        # A rank that is not in the table holds nothing.
        if in_flight.get(rank, 0) > limit:
            raise BadSchedule(Defect.TOO_MANY_IN_FLIGHT, f"{in_flight[rank]} on rank {rank}, at most {limit} expected")
    return Run(in_flight, *_timed(order))


def assert_runs(table: Mapping[int, Sequence[str]], *, stages: int, microbatches: int, **conditions: Any) -> None:
    """For cases of which a table without a defect is all that must hold; takes what `simulate` takes.

    Raises:
        BadSchedule: the table has a defect; it is an assertion that failed.
    """
    simulate(table, stages=stages, microbatches=microbatches, **conditions)


def _places(order: Mapping[int, Sequence[Action]]) -> dict[Action, _Place]:
    places: dict[Action, _Place] = {}
    for rank, actions in order.items():
        for position, action in enumerate(actions):
            if action in places:
                raise BadSchedule(Defect.REPEATED, f"{action} on rank {places[action].rank} and on rank {rank}")
            places[action] = _Place(rank, position)
    return places


def _check_content(places: Mapping[Action, _Place], stages: int, microbatches: int, spread: Collection[int]) -> None:
    """Each stage has each micro-batch forward and backward, on one rank, and there are no others."""
    for action in places:
        if action.stage >= stages or action.microbatch >= microbatches:
            raise BadSchedule(Defect.SURPLUS, f"{action} with {stages} stages and {microbatches} micro-batches")
    for stage in range(stages):
        homes = set()
        for one in range(microbatches):
            ranks = {kind: places[key].rank for kind in _UNITS if (key := Action(stage, kind, one)) in places}
            where = f"stage {stage}, micro-batch {one}"
            if "F" not in ranks:
                raise BadSchedule(Defect.MISSING_FORWARD, where)
            if not {"B", "I", "W"} & ranks.keys():
                raise BadSchedule(Defect.MISSING_BACKWARD, where)
            if "B" in ranks and {"I", "W"} & ranks.keys():
                raise BadSchedule(Defect.TWO_BACKWARDS, where)
            if "B" not in ranks and "I" not in ranks:
                raise BadSchedule(Defect.MISSING_BACKWARD, where)
            if "I" in ranks and "W" not in ranks:
                raise BadSchedule(Defect.MISSING_WEIGHT_GRADIENT, where)
            homes.update(ranks.values())
            if len(set(ranks.values()) if stage in spread else homes) > 1:
                raise BadSchedule(Defect.MOVED_STAGE, f"{where} on ranks {sorted({*ranks.values(), *homes})}")


def _backward(places: Mapping[Action, _Place], stage: int, microbatch: int) -> Action:
    """The action that makes the gradient of a stage's inputs."""
    whole = Action(stage, "B", microbatch)
    return whole if whole in places else Action(stage, "I", microbatch)


def _inputs(places: Mapping[Action, _Place], action: Action) -> Action | None:
    """The computation of a neighbouring stage whose result `action` takes, None for the first stage and the loss."""
    stage, kind, microbatch = action
    if kind == "F":
        return Action(stage - 1, "F", microbatch) if stage else None
    needed = _backward(places, stage + 1, microbatch)
    return needed if kind in "BI" and needed in places else None


def _check_order(places: Mapping[Action, _Place]) -> None:
    """What is on one rank is in the order in which it depends on each other."""
    for action, place in places.items():
        stage, kind, microbatch = action
        if kind in "BI" and places[Action(stage, "F", microbatch)].position > place.position:
            raise BadSchedule(Defect.BACKWARD_FIRST, f"{action} on rank {place.rank}")
        if kind == "W" and places[Action(stage, "I", microbatch)].position > place.position:
            raise BadSchedule(Defect.WEIGHT_GRADIENT_FIRST, f"{action} on rank {place.rank}")
        needed = _inputs(places, action) if kind in _UNITS else None
        if needed and places[needed].rank == place.rank and places[needed].position > place.position:
            raise BadSchedule(Defect.STAGE_ORDER, f"{action} before {needed} on rank {place.rank}")


def _messages(places: Mapping[Action, _Place]) -> dict[Action, Action]:
    """Each send that has to be in the table, with its receive."""
    messages = {}
    for action, place in places.items():
        needed = _inputs(places, action) if action.kind in _UNITS else None
        if needed and places[needed].rank != place.rank:
            way = "F" if action.kind == "F" else "B"
            send = Action(needed.stage, f"SEND_{way}", needed.microbatch)
            messages[send] = Action(action.stage, f"RECV_{way}", action.microbatch)
    return messages


def _check_messages(places: Mapping[Action, _Place], messages: Mapping[Action, Action]) -> None:
    """There is one send and one receive for what goes to another rank, at the right times, and none else."""
    for send, receive in messages.items():
        forward = send.kind == "SEND_F"
        stage, _, microbatch = send
        made = Action(stage, "F", microbatch) if forward else _backward(places, stage, microbatch)
        used = Action(receive.stage, "F", microbatch) if forward else _backward(places, receive.stage, microbatch)
        sender, receiver = places[made].rank, places[used].rank
        if send not in places or places[send].rank != sender:
            raise BadSchedule(Defect.MISSING_SEND, f"{send} on rank {sender}, for {receive} on rank {receiver}")
        if receive not in places or places[receive].rank != receiver:
            raise BadSchedule(Defect.MISSING_RECEIVE, f"{receive} on rank {receiver}, of {send} on rank {sender}")
        if places[send].position < places[made].position:
            raise BadSchedule(Defect.SENT_TOO_EARLY, f"{send} before {made} on rank {sender}")
        if places[receive].position > places[used].position:
            raise BadSchedule(Defect.RECEIVED_TOO_LATE, f"{receive} after {used} on rank {receiver}")
    known = {*messages, *messages.values()}
    for action, place in places.items():
        if action.kind not in _UNITS and action not in known:
            raise BadSchedule(Defect.NEEDLESS_MESSAGE, f"{action} on rank {place.rank}")


def _check_channels(
    order: Mapping[int, Sequence[Action]], places: Mapping[Action, _Place], messages: Mapping[Action, Action]
) -> None:
    """Between two ranks messages of one direction are received in the order in which they are sent."""
    sent, received = defaultdict(list), defaultdict(list)
    sends = {receive: send for send, receive in messages.items()}
    for rank, actions in order.items():
        for action in actions:
            if action in messages:
                sent[rank, places[messages[action]].rank].append(action)
            elif action in sends:
                received[places[sends[action]].rank, rank].append(sends[action])
    for (sender, receiver), there in sent.items():
        for one, other in zip(there, received[sender, receiver], strict=True):
            if one != other:
                where = f"from rank {sender} to rank {receiver} {one} is sent where {other} is received"
                raise BadSchedule(Defect.MESSAGE_ORDER, where)


def _run_blocking(
    order: Mapping[int, Sequence[Action]], places: Mapping[Action, _Place], messages: Mapping[Action, Action]
) -> None:
    """Every rank comes to its end although a send waits for its receive, and a receive for its send."""
    partner = {**messages, **{receive: send for send, receive in messages.items()}}
    next_up = dict.fromkeys(order, 0)
    arrived: set[Action] = set()
    ready = list(order)
    while ready:
        rank = ready.pop()
        while next_up[rank] < len(order[rank]):
            action = order[rank][next_up[rank]]
            if action in partner:
                arrived.add(action)
                if partner[action] not in arrived:
                    break
                ready.append(places[partner[action]].rank)
            next_up[rank] += 1
    _check_ends(order, next_up)


def _check_ends(order: Mapping[int, Sequence[Action]], next_up: Mapping[int, int]) -> None:
    """Nobody is left at an action in the middle."""
    stuck = [f"rank {rank} at {order[rank][at]}" for rank, at in next_up.items() if at < len(order[rank])]
    if stuck:
        raise BadSchedule(Defect.CIRCULAR_WAIT, ", ".join(stuck))


def _peak(actions: Sequence[Action]) -> int:
    """Most forward passes whose activations are held at one time: up to B, or to W."""
    held = most = 0
    for action in actions:
        held += (action.kind == "F") - (action.kind in ("B", "W"))
        most = max(most, held)
    return most


def _timed(order: Mapping[int, Sequence[Action]]) -> tuple[int, Fraction]:
    """Units of time that a run takes, and the share of it in which ranks wait."""
    queues = {rank: [action for action in actions if action.kind in _UNITS] for rank, actions in order.items()}
    places = {action: _Place(rank, 0) for rank, actions in queues.items() for action in actions}
    ends: dict[Action, int] = {}
    clocks = dict.fromkeys(queues, 0)
    for rank, action in _in_order_of_dependence(places, queues, ends):
        needed = _inputs(places, action)
        ends[action] = max(clocks[rank], ends[needed] if needed else 0) + _UNITS[action.kind]
        clocks[rank] = ends[action]
    makespan = max(clocks.values(), default=0)
    busy = sum(_UNITS[action.kind] for action in places)
    return makespan, 1 - Fraction(busy, makespan * len(order)) if makespan else Fraction(0)


def _in_order_of_dependence(
    places: Mapping[Action, _Place], queues: Mapping[int, Sequence[Action]], ends: Mapping[Action, int]
) -> Iterator[tuple[int, Action]]:
    """Each rank's computations in its order, none before what it takes from another stage."""
    next_up = dict.fromkeys(queues, 0)
    while True:
        before = dict(next_up)
        for rank, queue in queues.items():
            while next_up[rank] < len(queue):
                action = queue[next_up[rank]]
                needed = _inputs(places, action)
                if needed and needed not in ends:
                    break
                yield rank, action
                next_up[rank] += 1
        if next_up == before:
            break
    _check_ends(queues, next_up)
