"""Layers in target patterns: turns //...:l0 and //pkg/...:l0, which stock Bazel rejects, into what it knows.

For build, test and coverage a layer becomes a tag filter (each test carries the tag of its one layer); for
query and cquery it becomes an expression. A call without such a pattern is returned as it came.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .command_line import CommandLine, parse
from .report import EntryError

LAYERS = ("l0", "l1", "l2", "l3", "l4")
# Each test carries the tag of its layer, or this one: tools/rules.
_FAULTS = "faults"

_PATTERN = re.compile(r"(-?)((?://)?(?:[^:\s/][^:\s]*/|)\.\.\.):(l\d+)")
# The same inside a query expression: neither quoted nor a part of a longer word.
_QUOTED_OR_PATTERN = re.compile(
    r""""[^"]*"|'[^']*'|(?<![\w/:@.+~*$-])((?://)?(?:[\w.+~$][\w/.+~$-]*/|)\.\.\.):(l[0-4])(?![\w/:@.+~*$-])"""
)
_FILTER = "--test_tag_filters"


class Rewritten(NamedTuple):
    """The arguments for Bazel. `layers`: those that a run of tests is now limited to, empty otherwise."""

    arguments: list[str]
    changed: bool = False
    layers: tuple[str, ...] = ()


class _Target(NamedTuple):
    """A target pattern of the call, and the layer that it asks for ("" for an ordinary pattern)."""

    index: int
    negative: bool
    pattern: str
    layer: str = ""

    @property
    def without_layer(self) -> str:
        """The pattern as Bazel knows it."""
        return f"{'-' if self.negative else ''}{self.pattern}"


def rewrite(arguments: list[str]) -> Rewritten:
    """The arguments as Bazel knows them. Errors: layers combined in a way that one call cannot express."""
    line = parse(arguments)
    if line.command in ("build", "test", "coverage"):
        targets = [_target(index, arguments[index]) for index in line.targets]
        if any(target.layer for target in targets):
            return _rewrite_targets(line, targets)
    elif line.command in ("query", "cquery"):
        new = list(arguments)
        for index in line.targets:
            new[index] = rewrite_query(arguments[index])
        return Rewritten(new, changed=new != arguments)
    return Rewritten(arguments)


def _target(index: int, word: str) -> _Target:
    match = _PATTERN.fullmatch(word)
    if match and match[3] not in LAYERS:
        raise EntryError(f"{word}: there is no layer {match[3]}, expected one of {', '.join(LAYERS)}")
    if match:
        return _Target(index, bool(match[1]), match[2], match[3])
    return _Target(index, word.startswith("-"), word[1:] if word.startswith("-") else word)


def _rewrite_targets(line: CommandLine, targets: list[_Target]) -> Rewritten:
    wanted = [target for target in targets if not target.negative]
    layers = _layers_wanted(wanted)
    dropping = [target for target in targets if target.negative and _drops_layer(target, wanted, layers)]
    dropped = [target.layer for target in dropping]
    kept = [layer for layer in layers if layer not in dropped]
    if layers and not kept:
        raise EntryError(f"nothing is left of {_listed(wanted)} without {_listed(dropping)}")

    new: list[str | None] = list(line.words)
    said = set()
    for target in targets:
        if target.layer:
            word = target.without_layer
            new[target.index] = None if target in dropping or word in said else word
            said.add(word)
    given = _value(line, _FILTER)
    value = combine(given, kept) if kept else leave_out(given, dropped)
    if _FILTER in line.values:
        at = line.values[_FILTER]
        new[at] = f"{_FILTER}={value}" if line.words[at].startswith(_FILTER) else value
        flags = []
    else:
        flags = [f"{_FILTER}={value}"]
    if kept and "--nobuild_tests_only" not in line.words:
        flags.append("--build_tests_only")
    new[line.end_of_flags : line.end_of_flags] = flags
    arguments = [word for word in new if word is not None]
    return Rewritten(arguments, changed=True, layers=() if line.command == "build" else tuple(kept))


def _layers_wanted(wanted: list[_Target]) -> list[str]:
    """The layers that the call asks for.

    Errors: not all in the same folders, or beside an ordinary pattern; a tag filter holds for the whole call.
    """
    patterns = {layer: {t.pattern for t in wanted if t.layer == layer} for layer in ("", *LAYERS)}
    layers = [layer for layer in LAYERS if patterns[layer]]
    if layers and (patterns[""] or any(patterns[layer] != patterns[layers[0]] for layer in layers)):
        raise EntryError(
            f"one call cannot run {_listed(wanted)}: a layer limits all patterns of the call. "
            "Make it several calls, or name the suites: //pkg:l0 can stand beside any target"
        )
    return layers


def _drops_layer(negative: _Target, wanted: list[_Target], layers: list[str]) -> bool:
    """Whether a negative pattern takes a layer away as a whole, not folders from the one layer asked for.

    Errors: it takes a layer away from some of the folders only.
    """
    if not negative.layer or layers == [negative.layer]:
        return False
    touches = not layers or negative.layer in layers
    if touches and not all(_covers(negative.pattern, target.pattern) for target in wanted):
        raise EntryError(
            f"one call cannot run {_listed(wanted)} without {_listed([negative])}: a layer can be left out "
            "only of all that the call asks for. Name the suites to leave out instead: -//pkg:l0"
        )
    return True


def _covers(outer: str, inner: str) -> bool:
    """Whether all targets that the pattern `inner` can match lie in the folder of the pattern `outer`."""
    folder = outer[: -len("...")]
    if folder in ("", "//"):
        return not inner.startswith("@") and (folder == "//" or not inner.startswith("//"))
    return inner.startswith(folder) or f"{inner.partition(':')[0]}/" == folder


def _listed(targets: list[_Target]) -> str:
    return " ".join(f"{t.without_layer}:{t.layer}" if t.layer else t.without_layer for t in targets)


def _value(line: CommandLine, flag: str) -> str:
    """The last value of a flag, "" when the call has none."""
    if flag not in line.values:
        return ""
    word = line.words[line.values[flag]]
    return word.partition("=")[2] if word.startswith(f"{flag}=") else word


def combine(given: str, layers: list[str]) -> str:
    """A value of --test_tag_filters: what the user gave AND (any of `layers`).

    Bazel ORs positive tags. For layers and cards there are combined tags (l1-2card); beside other tags the
    layer is said as "nothing else than it".
    """
    tags, excluded = _filters(given)
    if all(re.fullmatch(r"\d+card", tag) for tag in tags):
        tags = [f"{layer}-{tag}" for layer in layers for tag in tags] or layers
    else:
        excluded += [f"-{kind}" for kind in (*LAYERS, _FAULTS) if kind not in layers]
    return ",".join([*tags, *excluded])


def leave_out(given: str, layers: list[str]) -> str:
    """A value of --test_tag_filters: what the user gave AND none of `layers`."""
    tags, excluded = _filters(given)
    return ",".join([*tags, *excluded, *(f"-{layer}" for layer in layers)])


def _filters(value: str) -> tuple[list[str], list[str]]:
    """The positive tags of a value of --test_tag_filters, and the negative ones with their signs."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    positive = [part[1:] if part.startswith("+") else part for part in parts if not part.startswith("-")]
    return positive, [part for part in parts if part.startswith("-")]


def rewrite_query(expression: str) -> str:
    """The expression with //pkg/...:l0 replaced by the tests of that layer. Quoted words stay as they are."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        if re.search(r"\bset\s*\([^()]*$", expression[: match.start()]):
            raise EntryError(f"set() takes plain labels only: join {match[0]} to it with + instead")
        return f'attr(tags, "[\\[ ]{match[2]}[,\\]]", tests({match[1]}))'

    return _QUOTED_OR_PATTERN.sub(replace, expression)
