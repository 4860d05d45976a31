"""What tables of pipeline schedules consist of, and what can be wrong with one."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Action", "BadSchedule", "Defect", "parse"]

_TEXT = re.compile(r"(\d+)(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)(\d+)")


class Defect(StrEnum):
    """Why a table is refused."""

    UNREADABLE = "an action that cannot be read"
    SURPLUS = "an action of a stage or micro-batch that does not exist"
    REPEATED = "an action twice"
    MISSING_FORWARD = "no forward pass"
    MISSING_BACKWARD = "no backward pass"
    MISSING_WEIGHT_GRADIENT = "a gradient of inputs without that of weights"
    TWO_BACKWARDS = "a whole backward pass and a part of it"
    MOVED_STAGE = "a stage on two ranks"
    BACKWARD_FIRST = "backward before forward"
    WEIGHT_GRADIENT_FIRST = "the gradient of weights before that of inputs"
    STAGE_ORDER = "a stage before the one that it depends on"
    MISSING_SEND = "no send"
    MISSING_RECEIVE = "no receive"
    NEEDLESS_MESSAGE = "a message that nobody needs"
    SENT_TOO_EARLY = "a send before what it sends"
    RECEIVED_TOO_LATE = "a receive after its use"
    MESSAGE_ORDER = "messages between two ranks in two orders"
    CIRCULAR_WAIT = "ranks that wait for each other"
    TOO_MANY_IN_FLIGHT = "more micro-batches in flight than allowed"


class BadSchedule(AssertionError):
    """A table is refused for `defect`; the message has the action and the rank."""

    def __init__(self, defect: Defect, where: object) -> None:
        super().__init__(f"{defect}: {where}")
        self.defect = defect


class Action(NamedTuple):
    """What a rank does at one time, for one stage and micro-batch."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def parse(text: str) -> Action:
    """An action from its text.

    Raises:
        BadSchedule: it is none.
    """
    found = _TEXT.fullmatch(text)
    if not found:
        raise BadSchedule(Defect.UNREADABLE, repr(text))
    return Action(int(found[1]), found[2], int(found[3]))
