"""Configurations of training runs: from text, to text, and against the ranks that there are."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hyper_parallel_tests.engines.torch_native.trainer import yaml_text
from hyper_parallel_tests.engines.torch_native.trainer.settings import Section, TrainerConfig
from hyper_parallel_tests.engines.torch_native.trainer.yaml_text import TextError, child

__all__ = [
    "check_parallel_degrees",
    "dump_training_config",
    "parse_training_args",
    "parse_training_config",
    "training_config_reference",
]

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_FOUND = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "keys"}


def parse_training_config(text: str, overrides: Sequence[str] = ()) -> TrainerConfig:
    """See the port."""
    raw = yaml_text.read(text)
    if not isinstance(raw, dict):
        hint = "; write {} for a run with all defaults" if raw is None else ""
        raise TextError(f"the text: expected keys at the top, found {_found(raw)}{hint}")
    for override in overrides:
        raw = _overridden(raw, override)
    problems: list[str] = []
    config = _section(TrainerConfig, raw, "", problems)
    problems = problems or list(_contradictions(config))
    if problems:
        raise TextError("\n".join(problems))
    return config


def parse_training_args(argv: Sequence[str]) -> TrainerConfig:
    """See the port."""
    path, *overrides = argv
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"{path}: expected a readable file of UTF-8 text: {error}") from error
    return parse_training_config(text, overrides)


def dump_training_config(config: TrainerConfig) -> str:
    """See the port."""
    return yaml_text.dump(_plain(asdict(config)))


def training_config_reference() -> dict[str, tuple[str, Any, str]]:
    """See the port."""
    return {
        path: (_kind(type_), setting.default, setting.metadata["says"])
        for path, setting, type_ in _settings(TrainerConfig, "")
    }


def check_parallel_degrees(
    config: TrainerConfig,
    world_size: int,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    layers: int | None = None,
    experts: int | None = None,
    sequence: int | None = None,
) -> dict[str, int]:
    """See the port."""
    degrees = _degrees(asdict(config.parallel), world_size)
    divided = [("tp", heads, "heads"), ("tp", kv_heads, "key and value heads"), ("ep", experts, "experts")]
    for name, whole, what in [*divided, ("cp", sequence, "places of a sequence")]:
        if whole is not None and whole % degrees[name]:
            raise ValueError(f"parallel.{name}: {whole} {what} do not divide among {degrees[name]} ranks")
    if layers is not None and degrees["pp"] > layers:
        raise ValueError(f"parallel.pp: {degrees['pp']} stages, and there are {layers} layers: each needs one at least")
    rows, parts = config.training.global_batch_size, config.training.gradient_accumulation_steps
    ranks = degrees["dp"] * degrees["fsdp"] * degrees["ep"]
    if rows % (parts * ranks):
        raise ValueError(
            f"training.global_batch_size: {rows} rows do not divide among {ranks} ranks with {parts} micro-batches each"
        )
    return degrees


def _degrees(degrees: dict[str, int], world_size: int) -> dict[str, int]:
    """With what is left in the place of a -1."""
    for name, degree in degrees.items():
        if degree != -1 and world_size % degree:
            raise ValueError(f"parallel.{name}: {degree} does not divide the world of {world_size} ranks")
    left = [name for name, degree in degrees.items() if degree == -1]
    if len(left) > 1:
        raise ValueError(f"parallel.{left[1]}: only one degree may be -1, and parallel.{left[0]} is")
    given = {name: degree for name, degree in degrees.items() if degree > 1}
    product = math.prod(given.values())
    if world_size % product or (not left and product != world_size):
        names = " x ".join(f"{name}={degree}" for name, degree in given.items()) or "no degree above 1"
        raise ValueError(
            f"parallel: {names} takes {product} ranks, and the world has {world_size}; "
            f"make one of them -1 for what is left"
        )
    return degrees | dict.fromkeys(left, world_size // product)


def _overridden(raw: dict[str, Any], override: str) -> dict[str, Any]:
    """What was read, with --section.key=value in it; aliases of what changes stay as they are."""
    path, equals, text = override.removeprefix("--").partition("=")
    keys = path.split(".")
    if not override.startswith("--") or not equals or not all(keys):
        raise TextError(f"{override}: expected --section.key=value")
    whole = place = dict(raw)
    for depth, key in enumerate(keys[:-1], start=1):
        below = place.get(key, {})
        if not isinstance(below, dict):
            raise TextError(f"{'.'.join(keys[:depth])}: expected keys, found {_found(below)}")
        place[key] = dict(below)
        place = place[key]
    place[keys[-1]] = yaml_text.read(text, path)
    return whole


def _contradictions(config: TrainerConfig) -> Iterator[str]:
    """What no setting has wrong alone."""
    if config.lr_schedule.warmup_steps > config.training.steps:
        yield (
            f"lr_schedule.warmup_steps: {config.lr_schedule.warmup_steps} steps, and training.steps is "
            f"{config.training.steps}"
        )
    if "checkpoint" in config.callbacks and not (config.checkpoint.folder and config.checkpoint.interval):
        missing = "interval" if config.checkpoint.folder else "folder"
        yield f"checkpoint.{missing}: not given, and callbacks has checkpoint, which needs it"
    if "best_metric" in config.callbacks and "validation" not in config.callbacks:
        yield "callbacks: best_metric compares what validation finds, so name validation too"


def _section(kind: type, raw: Any, path: str, problems: list[str]) -> Any:
    """A section of what was read; what is wrong with it goes to `problems`."""
    if not isinstance(raw, dict):
        problems.append(f"{path}: expected keys, found {_found(raw)}")
        return kind()
    types, found = get_type_hints(kind), {}
    known = {one.name: one for one in fields(kind)}
    for key, value in raw.items():
        here = child(path, key)
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {child(path, near[0])}?" if near else f"known are {', '.join(known)}"
            problems.append(f"{here}: unknown key; {hint}")
        elif _is_section(types[key]):
            found[key] = _section(types[key], value, here, problems)
        else:
            problem, found[key] = _setting(value, types[key], known[key].metadata["rules"])
            if problem:
                problems.append(f"{here}: {problem}")
    return kind() if problems else kind(**found)


def _setting(value: Any, type_: Any, rules: Sequence[Any]) -> tuple[str, Any]:
    """What is wrong with a value, if anything, and the value in the setting's type."""
    taken = _as(value, type_)
    if taken is MISSING:
        return f"expected {_kind(type_)}, found {_found(value)}", None
    if taken is not None:
        for rule in rules:
            if problem := rule(taken):
                return f"{problem}, found {value!r}", None
    return "", taken


def _as(value: Any, type_: Any) -> Any:
    """A value in a type, or MISSING where it is not of it: no text is a number, and no number is true or false."""
    if isinstance(type_, UnionType):
        return None if value is None else _as(value, get_args(type_)[0])
    if get_origin(type_) is tuple:
        parts = [_as(one, get_args(type_)[0]) for one in value] if isinstance(value, list) else [MISSING]
        return MISSING if MISSING in parts else tuple(parts)
    if type_ is float and type(value) is int:
        return float(value)
    return value if type(value) is type_ else MISSING


def _kind(type_: Any) -> str:
    if isinstance(type_, UnionType):
        return f"{_kind(get_args(type_)[0])} or null"
    if get_origin(type_) is tuple:
        return f"a list, each {_kind(get_args(type_)[0])}"
    return _KINDS[type_]


def _found(value: Any) -> str:
    """What kind of value, and which where it is short: a text may be anything, and as long as it likes."""
    if value is None:
        return "nothing"
    shown = "" if isinstance(value, (list, dict)) else f" {value!r}"[:40]
    return f"{_FOUND[type(value)]}{shown}"


def _settings(kind: type, path: str) -> Iterator[tuple[str, Any, Any]]:
    types = get_type_hints(kind)
    for one in fields(kind):
        here = child(path, one.name)
        if _is_section(types[one.name]):
            yield from _settings(types[one.name], here)
        else:
            yield here, one, types[one.name]


def _is_section(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Section)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return list(value) if isinstance(value, tuple) else value
