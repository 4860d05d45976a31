"""Holds what a rank did to the plan of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from hyper_parallel_tests.domains.pipeline_parallel.actions import Action, parse
from hyper_parallel_tests.domains.pipeline_parallel.kinds import Kind, Table

__all__ = ["computations", "messages", "planned_messages", "receives_ahead", "unready"]


def computations(order: Sequence[str]) -> list[str]:
    """The computations of an order: I and W of one micro-batch that follow one another are its B.

    The first stage has no inputs to compute a gradient of: all of its backward is in W, wherever I stands.
    """
    found: list[Action] = []
    for action in map(parse, order):
        if len(action.kind) > 1 or (action.stage == 0 and action.kind == "I"):
            continue
        if action.stage == 0 and action.kind == "W":
            action = action._replace(kind="B")
        if action.kind == "W" and found and found[-1] == action._replace(kind="I"):
            found[-1] = action._replace(kind="B")
        else:
            found.append(action)
    return [str(one) for one in found]


def messages(order: Sequence[str], kind: Kind, ranks: int) -> dict[str, list[str]]:
    """What was sent to each rank, and received from each, in order."""
    found: dict[str, list[str]] = {}
    for action in map(parse, order):
        if len(action.kind) > 1:
            way, direction = action.kind.split("_")
            other = action.stage + (1 if (way == "SEND") == (direction == "F") else -1)
            where = f"{'to' if way == 'SEND' else 'from'} rank {kind.rank_of(other, ranks)}"
            found.setdefault(where, []).append(str(action))
    return found


def planned_messages(plan: Table, kind: Kind, rank: int, ranks: int) -> dict[str, list[str]]:
    """Each result goes out after its computation, and so arrives in the order of the sender's computations."""
    sent = messages(_sends(plan[rank], kind, rank, ranks), kind, ranks)
    for other in range(ranks):
        if other != rank:
            arriving = messages(_sends(plan[other], kind, other, ranks), kind, ranks).get(f"to rank {rank}", [])
            if arriving:
                sent[f"from rank {other}"] = [str(_receive_of(parse(one))) for one in arriving]
    return sent


def _sends(order: Sequence[str], kind: Kind, rank: int, ranks: int) -> list[str]:
    last = kind.stage_num(ranks) - 1
    found = []
    for stage, what, micro in map(parse, order):
        other = stage + 1 if what == "F" else stage - 1
        if what in "FBI" and 0 <= other <= last and kind.rank_of(other, ranks) != rank:
            found.append(f"{stage}SEND_{'F' if what == 'F' else 'B'}{micro}")
    return found


def _receive_of(send: Action) -> Action:
    direction = send.kind[-1]
    return Action(send.stage + (1 if direction == "F" else -1), f"RECV_{direction}", send.microbatch)


def unready(order: Sequence[str]) -> list[str]:
    """What was sent before it was computed, or received after the computation that needs it."""
    place = {action: index for index, action in enumerate(order)}
    wrong = []
    for text, index in place.items():
        stage, kind, micro = parse(text)
        if kind.startswith("SEND"):
            made = [f"{stage}F{micro}"] if kind == "SEND_F" else [f"{stage}I{micro}"]
            wrong += [text for one in made if place.get(one, index) >= index]
        if kind.startswith("RECV"):
            used = f"{stage}F{micro}" if kind == "RECV_F" else f"{stage}I{micro}"
            wrong += [text] if place.get(used, index) <= index else []
    return wrong


def receives_ahead(order: Sequence[str]) -> int:
    """How many computations began between a receive and the one that needs it, in all."""
    place = {action: index for index, action in enumerate(order)}
    ahead = 0
    for text, index in place.items():
        stage, kind, micro = parse(text)
        if kind.startswith("RECV"):
            used = place[f"{stage}F{micro}" if kind == "RECV_F" else f"{stage}I{micro}"]
            between = [one for one in order[index:used] if len(parse(one).kind) == 1]
            ahead += len([one for one in between if "W" not in one])
    return ahead
