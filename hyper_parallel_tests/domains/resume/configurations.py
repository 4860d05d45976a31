"""What the cases see of configurations, and of the errors that they are refused with."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

__all__ = ["accepted", "leaves", "refused"]


def leaves(config: Any, path: str = "") -> dict[str, Any]:
    """Each setting's value, by its path."""
    found: dict[str, Any] = {}
    for one in fields(config):
        value, here = getattr(config, one.name), f"{path}.{one.name}".lstrip(".")
        found |= leaves(value, here) if is_dataclass(value) else {here: value}
    return found


def refused(engine: Any, text: str, *overrides: str) -> list[str]:
    """The lines of the error that a text is refused with."""
    with pytest.raises(ValueError, match=": ") as caught:
        engine.parse_training_config(text, overrides)
    return str(caught.value).splitlines()


def accepted(engine: Any, text: str) -> Any:
    """The configuration of a text that is right."""
    try:
        return engine.parse_training_config(text)
    except ValueError as error:
        pytest.fail(f"{text!r} is refused: {error}")
