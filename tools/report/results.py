"""What runs of the net did, case by case, from Bazel's build events or from the JUnit XML that the launcher writes.

It also serves before and without the project's environment: standard library only.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

DOES_NOT_FIT = "SKIPPED"
"""Bazel's word for a target that is not for this engine or device, or whose engine is not at hand."""

_SHOWS_A_DEFECT = {"assertion", "error", "hang", "crash"}


@dataclass(frozen=True)
class Case:
    """One case of one report.

    Attributes:
        nodeid: `file::name`, as the launcher takes it.
        verdict: the harness' verdict; `failed`, `skipped` or `passed` where the report is not of the harness.
        red: whether it made the run red.
        headline: one line on what it did, empty where it passed.
        contracts: ids that it cites.
        cards: how many ranks it ran on.
        jobs: whether one rank ran it, which started jobs on the cards.
        engine, engine_version: what it ran on, empty where it saw no engine.
        reproduction: the script in the engine's expectations folder, for a defect that is known.
        fault: the deliberate defect that it ran with: such a case says nothing about the engine.
    """

    nodeid: str
    verdict: str
    red: bool = False
    headline: str = ""
    contracts: tuple[str, ...] = ()
    cards: int = 1
    jobs: bool = False
    engine: str = ""
    engine_version: str = ""
    reproduction: str = ""
    fault: str = ""

    @property
    def shows_a_defect(self) -> bool:
        """Whether the engine broke the cited contracts, expected or not."""
        return self.judges and (self.verdict in _SHOWS_A_DEFECT or self.verdict == "expected-broken")

    @property
    def newly_broken(self) -> bool:
        """Whether the cited contracts had to hold, and do not."""
        return self.judges and self.verdict in _SHOWS_A_DEFECT

    @property
    def newly_fixed(self) -> bool:
        """Whether the case was expected to fail and does not."""
        return self.judges and self.verdict == "unexpectedly-held"

    @property
    def judges(self) -> bool:
        """Whether what it did says something about contracts of an engine."""
        return bool(self.contracts) and not self.fault


@dataclass
class Target:
    """One test target of a run: Bazel's verdict, and its cases over all shards and runs.

    Attributes:
        cached: whether no result of it is from this run.
        cases: from its reports.
        trouble: what is wrong with it beyond its cases: not built, no report, ended from outside.
        unread: results that passed without a report: other kinds of tests.
    """

    label: str
    status: str = ""
    cached: bool = True
    cases: list[Case] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    unread: int = 0


def read_events(events: Iterable[str], workspace: Path) -> dict[str, Target]:
    """Targets by label, from the lines of a --build_event_json_file.

    Args:
        events: the lines.
        workspace: where `bazel-testlogs` is, for reports of which the events give no local place.
    """
    targets: dict[str, Target] = {}
    for line in events:
        event = json.loads(line)
        if "testResult" in event:
            _add_result(targets, event, workspace)
        elif "testSummary" in event:
            label = event["id"]["testSummary"]["label"]
            targets.setdefault(label, Target(label)).status = event["testSummary"]["overallStatus"]
        elif "aborted" in event and "targetCompleted" in event["id"]:
            label = event["id"]["targetCompleted"]["label"]
            if event["aborted"].get("reason") == "SKIPPED":
                targets.setdefault(label, Target(label, DOES_NOT_FIT))
            else:
                failed = targets.setdefault(label, Target(label, "NOT BUILT"))
                failed.trouble.append(event["aborted"].get("description", "was not built"))
    return targets


def read_xml(path: Path) -> list[Case]:
    """The cases of one JUnit XML; none where there is no such file or it is no XML."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return []
    return [_case(element) for element in root.iter("testcase")]


def read_folder(folder: Path) -> Iterator[Case]:
    """The cases of all JUnit XML files below a folder, such as `bazel-testlogs`."""
    for path in sorted(folder.rglob("*.xml")):
        yield from read_xml(path)


def save(cases: Iterable[Case], path: Path) -> None:
    """Keep cases, a line of JSON each: the next `bazel test` replaces the reports that build events point to."""
    path.write_text("".join(json.dumps(asdict(case)) + "\n" for case in cases), encoding="utf-8")


def load(path: Path) -> list[Case]:
    """What `save` kept; none where the file is of another kind."""
    with path.open(encoding="utf-8") as lines:
        first = lines.readline()
        if not first.startswith('{"nodeid"'):
            return []
        found = [json.loads(line) for line in (first, *lines)]
    return [Case(**one | {"contracts": tuple(one["contracts"])}) for one in found]


def _add_result(targets: dict[str, Target], event: dict, workspace: Path) -> None:
    label = event["id"]["testResult"]["label"]
    result = event["testResult"]
    target = targets.setdefault(label, Target(label))
    target.status = result["status"]
    target.cached &= bool(result.get("cachedLocally") or result.get("executionInfo", {}).get("cachedRemotely"))
    xml = _xml_of(event, workspace)
    found = read_xml(xml) if xml is not None else []
    target.cases += found
    if result["status"] != "PASSED" and not any(case.red for case in found):
        no_case = "although no case failed" if found else "and left no report"
        target.trouble.append(f"Bazel says {result['status']} {no_case}")
    elif not found:
        target.unread += 1


def _xml_of(event: dict, workspace: Path) -> Path | None:
    """The test.xml of one result: where the event says, or, after a remote run, where Bazel puts its copy."""
    for output in event["testResult"].get("testActionOutput", []):
        if output["name"] == "test.xml" and output.get("uri", "").startswith("file:"):
            return Path(unquote(urlparse(output["uri"]).path))
    label = event["id"]["testResult"]["label"]
    path = workspace / "bazel-testlogs" / label.removeprefix("//").replace(":", "/") / "test.xml"
    return path if path.exists() else None


def _case(element: ElementTree.Element) -> Case:
    said = {one.get("name", ""): one.get("value", "") for one in element.iter("property")}
    failure, skipped = element.find("failure"), element.find("skipped")
    failure = failure if failure is not None else element.find("error")
    told = failure if failure is not None else skipped
    plain = "failed" if failure is not None else "skipped" if skipped is not None else "passed"
    file = element.get("file") or element.get("classname", "")
    return Case(
        nodeid=f"{file}::{element.get('name')}" if file else element.get("name", ""),
        verdict=said.get("verdict") or plain,
        red=failure is not None,
        headline=_headline(said.get("headline") or ("" if told is None else told.get("message", ""))),
        contracts=tuple(said.get("contracts", "").split()),
        cards=int(said.get("cards", 1)),
        jobs="jobs" in said,
        engine=said.get("engine", ""),
        engine_version=said.get("engine_version", ""),
        reproduction=said.get("reproduction", ""),
        fault=said.get("fault", ""),
    )


def _headline(message: str) -> str:
    """The first line, without the name of the exception that a declining engine raises."""
    line = message.strip().partition("\n")[0]
    before, declined, after = line.partition("EngineUnsupported: ")
    return after if declined and " " not in before else line
