"""What a rank sees when another one is gone or stuck: a consequence, never the cause while another rank has a cause."""

from __future__ import annotations

import re

_SYMPTOM = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by (remote )?peer|broken pipe|socket closed"
    r"|timed? ?out (waiting|after)|wait timeout|application timeout|aborted by another rank|remote process exited",
    re.IGNORECASE,
)


def is_symptom(said: str) -> bool:
    """Whether an error only says that a peer is gone."""
    return _SYMPTOM.search(said) is not None
