"""What is promised and what is known to be broken: contracts and an engine's expectations, each a file a domain.

A contract stands in the contracts.toml of its domain, or, where capabilities meet, as a scenario in a registry.toml.

Nothing here needs torch, so the launcher and static checks read the same files the same way.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

__all__ = [
    "CONTRACT_FILES",
    "LAYERS",
    "Broken",
    "Contract",
    "ContractError",
    "expected_broken",
    "layer_of",
    "load_contracts",
    "load_expectations",
    "plan_cases",
]

LAYERS = ("l0", "l1", "l2", "l3", "l4")

# File -> the key of its entries.
CONTRACT_FILES = {"contracts.toml": "contract", "registry.toml": "scenario"}

# The FSDP plan counts levels of its own: couplings with other capabilities, in level 2, and with experts, the third
# of level 3, are our layer 3.
_PLAN_LAYERS = {
    "1": dict.fromkeys(range(1, 14), "l1"),
    "2": dict.fromkeys(range(1, 11), "l3") | dict.fromkeys((1, 2, 7, 8), "l2"),
    "3": dict.fromkeys(range(1, 7), "l2") | {3: "l3"},
}
# Where capabilities meet, and long runs: prefix -> layer and how many are planned.
_WHOLE_LAYERS = {"IX": ("l3", 23), "EN": ("l4", 6)}


class ContractError(ValueError):
    """A contracts.toml or a file of expectations is wrong; the message lists all that is, with the file."""


@dataclass(frozen=True)
class Contract:
    """One behaviour that the net holds engines to.

    Attributes:
        id: e.g. COL-1-03.
        layer: l0 to l4.
        statement: the promise in one sentence.
        source: where it comes from.
        mechanisms: the PyTorch mechanisms it leans on, as in the tags mech_<name>.
        path: the file that holds it.
        name: of a scenario, which its target and its file are called after; empty for others.
        cards: of a scenario; 0 for others.
        faults: the catalogue of a scenario's faults; empty for others, whose targets say it.
    """

    id: str
    layer: str
    statement: str
    source: str
    mechanisms: tuple[str, ...]
    path: Path
    name: str = ""
    cards: int = 0
    faults: str = ""


@dataclass(frozen=True)
class Broken:
    """Something that an engine is known to do wrong; exactly one of `contract` and `case` is set.

    Attributes:
        contract: every case that cites this contract is expected to fail.
        case: node id of one test function, or of one parametrisation of it; `*` stands for any text.
        engine_version: the engine's versions that show it, as a version specifier, e.g. `>=2.12,<2.14`.
        cards: the numbers of cards on which it shows; empty for any.
        sentence: what is wrong.
        reproduction: a script beside the file of the entry.
        path: the file of the entry, <domain>.toml.
    """

    contract: str
    case: str
    engine_version: SpecifierSet
    cards: frozenset[int]
    sentence: str
    reproduction: Path
    path: Path

    def concerns(self, nodeid: str, contracts: Iterable[str], engine_version: str, cards: int) -> bool:
        """Whether this says that the case fails on that version of the engine and that many cards."""
        if not self.engine_version.contains(engine_version, prereleases=True):
            return False
        if self.cards and cards not in self.cards:
            return False
        if self.contract:
            return self.contract in contracts
        return self.names(nodeid) or self.names(nodeid.split("[")[0])

    def names(self, nodeid: str) -> bool:
        """Whether `case` is this node id, or its end from a folder on."""
        return re.fullmatch("(.*/)?" + ".*".join(re.escape(part) for part in self.case.split("*")), nodeid) is not None


def layer_of(contract_id: str) -> str:
    """The layer that an id itself tells: COL-1-03 -> l1, FSDP-L2-03 -> l3 (the plan's couplings), IX-07 -> l3.

    Raises:
        ContractError: the id has no known form.
    """
    if found := re.fullmatch(r"FSDP-L(\d)-(\d\d)", contract_id):
        level, number = found.groups()
        if int(number) in _PLAN_LAYERS.get(level, {}):
            return _PLAN_LAYERS[level][int(number)]
    elif found := re.fullmatch(r"[A-Z]{2,4}-([0-4])-\d\d", contract_id):
        return f"l{found[1]}"
    elif (found := re.fullmatch(r"([A-Z]{2})-\d\d", contract_id)) and found[1] in _WHOLE_LAYERS:
        return _WHOLE_LAYERS[found[1]][0]
    raise ContractError(f"{contract_id!r} is no contract id: expected a form like COL-1-03, FSDP-L1-09, IX-07 or EN-02")


def plan_cases() -> dict[str, str]:
    """Every case of the FSDP plan (S1), every scenario and every long run, in their order: contract id -> layer."""
    fsdp = {
        f"FSDP-L{level}-{number:02}": layers[number]
        for level, layers in _PLAN_LAYERS.items()
        for number in sorted(layers)
    }
    whole = {
        f"{prefix}-{number:02}": layer
        for prefix, (layer, count) in _WHOLE_LAYERS.items()
        for number in range(1, count + 1)
    }
    return fsdp | whole


def load_contracts(root: Path) -> dict[str, Contract]:
    """All contracts in the contract files below `root`, by id, files in order of their paths.

    Raises:
        ContractError: an entry lacks a key or has an unknown or empty one, a layer is unknown or not the id's, or an id
            occurs twice.
    """
    contracts: dict[str, Contract] = {}
    problems: list[str] = []
    for path in sorted(path for name in CONTRACT_FILES for path in root.rglob(name)):
        shown, kind = path.relative_to(root), CONTRACT_FILES[path.name]
        for entry in _entries(path, shown, kind, problems):
            check = _check_scenario if kind == "scenario" else _check_contract
            if not check(entry, problems, f"{shown}: {entry.get('id', 'an entry without id')}"):
                continue
            if entry["id"] in contracts:
                first = contracts[entry["id"]].path.relative_to(root)
                problems.append(f"{shown}: {entry['id']} is already in {first}")
            contracts[entry["id"]] = _contract(entry, path)
    if problems:
        raise ContractError("\n".join(problems))
    return contracts


def _contract(entry: Mapping[str, Any], path: Path) -> Contract:
    known = {field.name for field in fields(Contract)} & entry.keys()
    told = {"layer": layer_of(entry["id"])} | {key: entry[key] for key in known}
    return Contract(**{**told, "mechanisms": tuple(entry["mechanisms"]), "path": path})


def load_expectations(folder: Path) -> tuple[Broken, ...]:
    """What `folder` (an engine's package) says in its expectations, a file a domain; nothing where it has none.

    An entry with `cases`, a list, stands for one entry a case. A target sees no reproductions: a script that does not
    exist is told by contract_check, which sees the whole tree.

    Raises:
        ContractError: an entry does not name one of contract, case and cases, lacks something, or has a bad version
            specifier, number of cards or name of a reproduction.
    """
    problems: list[str] = []
    found: list[Broken] = []
    for path in sorted((folder / "expectations").glob("*.toml")):
        shown = Path(folder.name, "expectations", path.name)
        for number, entry in enumerate(_entries(path, shown, "broken", problems), 1):
            if _check_broken(entry, problems, f"{shown}: entry {number}"):
                found += _broken(entry, path)
    if problems:
        raise ContractError("\n".join(problems))
    return tuple(found)


def _broken(entry: Mapping[str, Any], path: Path) -> Iterator[Broken]:
    for case in entry.get("cases", [entry.get("case", "")]):
        yield Broken(
            contract=entry.get("contract", ""),
            case=case,
            engine_version=SpecifierSet(entry["engine_version"]),
            cards=frozenset(_cards(entry)),
            sentence=entry["sentence"],
            reproduction=path.with_name(entry["reproduction"]),
            path=path,
        )


def expected_broken(
    expectations: Iterable[Broken], nodeid: str, contracts: Iterable[str], engine_version: str, cards: int
) -> Broken | None:
    """The first expectation that says that this case fails on this engine version, None where it must pass.

    Args:
        expectations: of the engine, from `load_expectations`.
        nodeid: the case, e.g. `hyper_parallel_tests/domains/collectives/l1_p2p_test.py::test_ring[forward]`.
        contracts: ids that the case cites.
        engine_version: of the engine that runs, e.g. `2.13.0`.
        cards: on which the case runs.
    """
    cited = tuple(contracts)
    return next((one for one in expectations if one.concerns(nodeid, cited, engine_version, cards)), None)


def _entries(path: Path, shown: Path, key: str, problems: list[str]) -> list[dict[str, Any]]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{shown}: no valid TOML: {error}")
        return []
    entries = table.get(key, [])
    if strange := table.keys() - {key}:
        found = ", ".join(sorted(strange))
    elif isinstance(entries, dict):
        found = f"a [{key}]"
    elif not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        found = f"{key} = {entries!r}"
    else:
        return entries
    problems.append(f"{shown}: expected only [[{key}]] entries, found {found}")
    return []


def _check_texts(entry: Mapping[str, Any], keys: Iterable[str], problems: list[str], where: str) -> None:
    for key in keys:
        value = entry.get(key)
        if not isinstance(value, str) or not value.strip():
            problems.append(f"{where}: {key} must be a text that says something, found {value!r}")


def _check_contract(entry: Mapping[str, Any], problems: list[str], where: str) -> bool:
    before = len(problems)
    texts = ("id", "layer", "statement", "source")
    _check_texts(entry, texts, problems, where)
    for key in sorted(entry.keys() - {*texts, "mechanisms"}):
        problems.append(f"{where}: unknown key {key!r}")
    _check_names(entry, ["mechanisms"], problems, where)
    if len(problems) > before:
        return False
    if entry["layer"] not in LAYERS:
        problems.append(f"{where}: unknown layer {entry['layer']!r}, expected one of {', '.join(LAYERS)}")
    try:
        if entry["layer"] in LAYERS and layer_of(entry["id"]) != entry["layer"]:
            problems.append(f"{where}: is of layer {layer_of(entry['id'])} by its id, but says {entry['layer']}")
    except ContractError as error:
        problems.append(f"{where}: {error}")
    return len(problems) == before


def _check_scenario(entry: Mapping[str, Any], problems: list[str], where: str) -> bool:
    before = len(problems)
    texts, names, lists = (
        ("id", "statement", "source"),
        ("mechanisms", "capabilities", "models"),
        ("risks", "assertions"),
    )
    _check_texts(entry, texts, problems, where)
    _check_names(entry, names, problems, where)
    for key in sorted(entry.keys() - {*texts, *names, *lists, "name", "cards", "mesh", "faults"}):
        problems.append(f"{where}: unknown key {key!r}")
    for key in lists:
        said = entry.get(key)
        if not isinstance(said, list) or not said or not all(isinstance(one, str) and one.strip() for one in said):
            problems.append(f"{where}: {key} must be a list of sentences, found {said!r}")
    for key in ("name", "faults"):
        if not _is_name(entry.get(key)):
            problems.append(f"{where}: {key} must be a lower_case name, found {entry.get(key)!r}")
    cards, mesh = entry.get("cards"), entry.get("mesh")
    if not isinstance(mesh, dict) or not all(type(one) is int and one > 0 for one in mesh.values()):
        problems.append(f"{where}: mesh must be a table of sizes like {{ dp = 2 }}, found {mesh!r}")
    elif cards != math.prod(mesh.values()):
        problems.append(f"{where}: cards must be the product of mesh, {math.prod(mesh.values())}, found {cards!r}")
    try:
        layer_of(str(entry.get("id")))
    except ContractError as error:
        problems.append(f"{where}: {error}")
    return len(problems) == before


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9_]+", value) is not None


def _check_names(entry: Mapping[str, Any], keys: Iterable[str], problems: list[str], where: str) -> None:
    for key in keys:
        names = entry.get(key)
        if not isinstance(names, list) or not all(map(_is_name, names)):
            problems.append(f"{where}: {key} must be a list of lower_case names, found {names!r}")


def _check_broken(entry: Mapping[str, Any], problems: list[str], where: str) -> bool:
    before = len(problems)
    subjects = [key for key in ("contract", "case", "cases") if key in entry]
    texts = [*subjects, "engine_version", "sentence", "reproduction"]
    for key in sorted(entry.keys() - {*texts, "cards"}):
        problems.append(f"{where}: unknown key {key!r}")
    if len(subjects) != 1:
        found = " and ".join(subjects) or "neither"
        problems.append(f"{where}: expected a contract, a case or a list of cases, found {found}")
    cases = entry.get("cases", ["one"])
    if not isinstance(cases, list) or not cases or not all(isinstance(one, str) and one.strip() for one in cases):
        problems.append(f"{where}: cases must be a list of node ids, found {cases!r}")
    _check_texts(entry, [key for key in texts if key != "cases"], problems, where)
    if len(problems) > before:
        return False
    try:
        SpecifierSet(entry["engine_version"])
    except InvalidSpecifier:
        problems.append(f"{where}: engine_version must be like '>=2.12,<2.14', found {entry['engine_version']!r}")
    if ("cards" in entry and not _cards(entry)) or any(type(one) is not int or one < 1 for one in _cards(entry)):
        problems.append(f"{where}: cards must be a number like 2 or a list like [2, 4], found {entry['cards']!r}")
    if not re.fullmatch(r"_broken_\w+\.py", entry["reproduction"]):
        found = repr(entry["reproduction"])
        problems.append(f"{where}: reproduction must be a script beside it, _broken_<what>.py, found {found}")
    return len(problems) == before


def _cards(entry: Mapping[str, Any]) -> list[Any]:
    """The numbers of cards of a [[broken]] entry as a list, however they are written."""
    cards = entry.get("cards", [])
    return cards if isinstance(cards, list) else [cards]
