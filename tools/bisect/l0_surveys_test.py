"""What is run for a contract, and what is read from it: a stand-in for Bazel writes the events."""

from __future__ import annotations

import json
import signal
import stat
import sys
from pathlib import Path

import pytest

from hyper_parallel_tests.contract_check.samples import L0, case, changed
from tools.bisect.surveys import Plan, UnknownContract, plan, run

BOTH = case(above='@contract("COL-0-01", "COL-1-01")').replace("COL-0-01", "COL-0-01")
DOMAIN = "//hyper_parallel_tests/domains/col"


def test_targets_and_functions_of_a_contract(tmp_path):
    """All layer tests with a case that cites it, and no fault target."""
    tree = changed(tmp_path, {L0: BOTH})
    assert plan(tree, "COL-1-01") == Plan("COL-1-01", (f"{DOMAIN}:l0_1card", f"{DOMAIN}:l1_2card"), ("test_it",))
    assert plan(tree, "COL-1-01", cards=2).targets == (f"{DOMAIN}:l1_2card",)
    assert plan(tree, "COL-1-01", targets=[f"{DOMAIN}:l0_1card"]).targets == (f"{DOMAIN}:l0_1card",)
    assert plan(tree, "COL-1-01", case="l0_a_test.py::test_it[x]").targets == (f"{DOMAIN}:l0_1card",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"contract": "COL-9-01"}, "no contract 'COL-9-01': expected one of COL-0-01, COL-1-01"),
        (
            {"contract": "COL-0-01", "cards": 4},
            r"nothing to run is left of its cases \(l0_a_test.py::test_it\) in .*:l0_1card",
        ),
        ({"contract": "COL-0-01", "targets": ["//x"]}, "nothing to run is left"),
        ({"contract": "COL-0-01", "case": "test_other"}, "nothing to run is left .* in no target"),
    ],
    ids=["contract", "cards", "target", "case"],
)
def test_nothing_to_run(tmp_path, given, message):
    """The message says what there is."""
    with pytest.raises(UnknownContract, match=message):
        plan(changed(tmp_path, {}), **given)


STAND_IN = """#!{python}
import json, os, pathlib, signal, sys
told = json.loads(pathlib.Path(__file__).with_name("told.json").read_text())
pathlib.Path(__file__).with_name("asked.json").write_text(json.dumps([sys.argv[1:], sorted(os.environ)]))
if told["interrupt"]:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(8))
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
print(told["says"])
place = next(word for word in sys.argv if word.startswith("--build_event_json_file=")).partition("=")[2]
pathlib.Path(place).write_text("".join(json.dumps(event) + "\\n" for event in told["events"]))
"""
XML = (
    '<testsuites><testsuite><testcase file="x_test.py" name="{name}"><properties>'
    '<property name="verdict" value="{verdict}"/><property name="contracts" value="{contracts}"/>'
    "</properties></testcase></testsuite></testsuites>"
)


class Workspace:
    """A workspace whose tools/bazel does as it was told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools, self.log = root / "tools", root / "log"
        self.tools.mkdir(parents=True)
        self.log.mkdir()
        entry = self.tools / "bazel"
        entry.write_text(STAND_IN.format(python=sys.executable))
        entry.chmod(entry.stat().st_mode | stat.S_IXUSR)

    def survey(self, *events: dict, says: str = "", interrupt: bool = False):
        """A survey of COL-1-01 for which Bazel writes these events and prints what it says."""
        told = {"events": events, "says": says, "interrupt": interrupt}
        (self.tools / "told.json").write_text(json.dumps(told))
        asked = Plan("COL-1-01", ("//a:l0", "//a:l1_2card"), ("test_a", "test_b"))
        return run(asked, "my_engine", Path("/my/checkout"), self.root, self.log, ["--config=x"])

    @property
    def asked(self) -> tuple[list[str], list[str]]:
        """The stand-in's arguments, and the names of its variables."""
        words, variables = json.loads((self.tools / "asked.json").read_text())
        return words, variables

    def result(self, label: str, name: str, verdict: str, contracts: str, cached: bool = False) -> dict:
        """The event of a target with one case."""
        xml = self.root / f"{name}.xml"
        xml.write_text(XML.format(name=name, verdict=verdict, contracts=contracts))
        output = {"name": "test.xml", "uri": xml.as_uri()}
        result = {"status": "PASSED", "cachedLocally": cached, "testActionOutput": [output]}
        return {"id": {"testResult": {"label": label}}, "testResult": result}


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return Workspace(tmp_path)


def test_what_bazel_is_asked(workspace, monkeypatch):
    """The engine, its checkout, a survey of the contract's functions, the flags given; nothing of our own Python."""
    monkeypatch.setenv("PYTHONPATH", "/ours")
    workspace.survey()
    words, variables = workspace.asked
    assert words[:3] == ["test", "--//tools/rules:engine=my_engine", "--repo_env=MY_ENGINE_PATH=/my/checkout"]
    assert words[5:] == [
        "--test_arg=--survey",
        "--test_arg=-k",
        "--test_arg=test_a or test_b",
        "--config=x",
        "//a:l0",
        "//a:l1_2card",
    ]
    assert "PYTHONPATH" not in variables


def test_cases_of_the_contract_are_read(workspace):
    """Other cases of the same targets do not count."""
    found = workspace.survey(
        workspace.result("//a:l0", "test_a", "crash", "COL-1-01"),
        workspace.result("//a:l1_2card", "test_ab", "crash", "COL-1-02"),
    )
    assert (list(found.broken), found.held, found.trouble) == (["x_test.py::test_a"], set(), "")


@pytest.mark.parametrize(("cached", "whole"), [((True, True), True), ((True, False), False)])
def test_cached_is_what_was_not_run(workspace, cached, whole):
    """A survey is cached if each of its targets is."""
    first, second = cached
    found = workspace.survey(
        workspace.result("//a:l0", "test_a", "passed", "COL-1-01", first),
        workspace.result("//a:l1_2card", "test_b", "passed", "COL-1-01", second),
    )
    assert found.cached is whole


def test_what_cannot_be_built_says_why(workspace):
    """Bazel's first error, or the reason that its events give."""
    assert workspace.survey(says="INFO: x\nERROR: no such package").trouble == "ERROR: no such package"
    aborted = {"reason": "SKIPPED"}
    skipped = workspace.survey({"id": {"targetCompleted": {"label": "//a:l0"}}, "aborted": aborted})
    assert (skipped.cases, skipped.trouble) == ({}, "//a:l0 is not for this engine or device")


def test_results_of_the_revision_before_do_not_stay(workspace):
    """Where Bazel writes no events there are none."""
    workspace.survey(workspace.result("//a:l0", "test_a", "passed", "COL-1-01"))
    (workspace.tools / "bazel").write_text(f"#!{sys.executable}\nprint('ERROR: cannot')\n")
    assert workspace.survey().told == "cannot be judged: ERROR: cannot"


def test_an_interruption_waits_for_bazel(workspace):
    """Ctrl-C goes on to Bazel, and to the caller once Bazel has ended."""
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            workspace.survey(interrupt=True)
    finally:
        signal.signal(signal.SIGINT, kept)
