"""YAML by the rules of its version 1.2, strictly: what reads two ways is an error with the place where it stands.

PyYAML's own loader follows version 1.1, in which `yes` is true, `010` is 8, `1e-3` is text and of a key that is given
twice the last one counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

__all__ = ["TextError", "child", "dump", "read"]

_CORE = "tag:yaml.org,2002:"
_SCALARS = (
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    ),
)


class TextError(ValueError):
    """The text is no YAML that is read here; the message begins with the path of the key."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_CORE + _tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_CORE + _tag, _pattern, _first)


def read(text: str, path: str = "") -> Any:
    """The value that a text stands for: dict, list, text, int, float, bool or None.

    Args:
        path: of the value, for messages.

    Raises:
        TextError: no YAML, or more than one document; a key twice, or not text; a tag or a merge key; an alias of what
            it stands in.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise TextError(f"{path or 'the text'}: no valid YAML: {' '.join(str(error).split())}") from error
    return None if node is None else _value(node, path, {}, set())


def dump(value: Mapping[str, Any]) -> str:
    """The text that `read` makes this of."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def child(path: str, key: str) -> str:
    """The path of a key of what has this path."""
    return f"{path}.{key}" if path else key


def _value(node: yaml.Node, path: str, known: dict[int, Any], open_: set[int]) -> Any:
    """What a node stands for. Nodes that are named again are read once, so that no text grows without bound."""
    if id(node) in open_:
        raise TextError(f"{path}: an alias of what it stands in, in {_line(node)}")
    if id(node) not in known:
        open_.add(id(node))
        known[id(node)] = _fresh_value(node, path, known, open_)
        open_.discard(id(node))
    return known[id(node)]


def _fresh_value(node: yaml.Node, path: str, known: dict[int, Any], open_: set[int]) -> Any:
    kind = node.tag.removeprefix(_CORE)
    if isinstance(node, yaml.MappingNode) and kind == "map":
        return {key: _value(value, child(path, key), known, open_) for key, value in _pairs(node, path)}
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        return [_value(one, f"{path}[{number}]", known, open_) for number, one in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(kind, node, path)
    raise TextError(f"{path or 'the text'}: tags are not read, and {node.tag} is one, in {_line(node)}")


def _pairs(node: yaml.MappingNode, path: str) -> Iterable[tuple[str, yaml.Node]]:
    lines: dict[str, str] = {}
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
        here = child(path, name)
        if key.tag != _CORE + "str":
            raise TextError(f"{here}: a key must be text, in {_line(key)}; put it in quotation marks if it is")
        if name == "<<" and key.style is None:
            raise TextError(f"{here}: merge keys are not read, in {_line(key)}; write the keys out")
        if name in lines:
            raise TextError(f"{here}: given twice, in {lines[name]} and in {_line(key)}; keep one of them")
        lines[name] = _line(key)
        yield name, value


def _scalar(kind: str, node: yaml.ScalarNode, path: str) -> Any:
    text = node.value
    pattern = next((pattern for tag, pattern, _ in _SCALARS if tag == kind), None)
    if kind != "str" and (pattern is None or not pattern.match(text)):
        raise TextError(f"{path}: {node.tag} is not read for {text!r}, in {_line(node)}")
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if kind == "float":
        return _number(text)
    return text


def _number(text: str) -> float:
    bare = text.lower().lstrip("+-")
    if bare == ".nan":
        return math.nan
    if bare == ".inf":
        return -math.inf if text.startswith("-") else math.inf
    return float(text)


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
