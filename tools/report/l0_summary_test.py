"""The summary of a run: what counts as what, and that nothing red is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.report import summary

CASES = {
    "passed": '<testcase name="a"/>',
    "failed": '<testcase name="b"><failure message="first line&#10;second line"/></testcase>',
    "skipped": '<testcase name="c"><skipped/></testcase>',
    "expected-broken": '<testcase name="d"><properties><property name="verdict" value="expected-broken"/></properties>'
    "<skipped/></testcase>",
    "not-offered": '<testcase name="e"><properties><property name="verdict" value="not-offered"/></properties>'
    "<skipped/></testcase>",
}


def result(folder: Path, label: str, *cases: str, status: str = "PASSED", run: int = 1) -> dict:
    """The event of one run of a target whose report holds `cases`; without any there is no report."""
    xml = folder / f"{label.strip('/:')}{run}.xml"
    if cases:
        xml.write_text(f"<testsuites><testsuite>{''.join(CASES[case] for case in cases)}</testsuite></testsuites>")
    outputs = [{"name": "test.xml", "uri": xml.as_uri()}] if cases else []
    return {
        "id": {"testResult": {"label": label, "run": run}},
        "testResult": {"status": status, "testActionOutput": outputs},
    }


def told(folder: Path, capsys: pytest.CaptureFixture[str], *events: dict) -> tuple[int, list[str]]:
    """The exit code, and the lines of the summary of these events."""
    path = folder / "events"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    code = summary.main([str(path)])
    return code, capsys.readouterr().out.splitlines()


def test_each_verdict_is_counted_by_itself(tmp_path, capsys):
    """Known defects and members that are not offered are neither passed nor failed nor skipped."""
    code, lines = told(tmp_path, capsys, result(tmp_path, "//:x", "passed", *CASES))
    assert code == 1
    assert lines[-1] == "2 passed, 1 failed, 1 skipped"
    assert "    FAILED b: first line" in lines
    assert [line for line in lines if line.startswith("expected broken") and line.endswith(": 1")]
    assert [line for line in lines if line.startswith("not offered") and line.endswith(": 1")]


def test_runs_and_shards_add_up(tmp_path, capsys):
    """Each run of a target brings its own cases."""
    events = [result(tmp_path, "//:x", "passed", "passed", run=run) for run in (1, 2, 3)]
    assert told(tmp_path, capsys, *events) == (0, [f"{'//:x':<70} PASSED: 6 passed", "6 passed, 0 failed"])


@pytest.mark.parametrize("cases", [(), ("passed",)], ids=["no report", "no red case"])
def test_what_bazel_calls_red_is_red(tmp_path, capsys, cases):
    """A target that Bazel ended, or that left no report, is a failure even if no case says so."""
    code, lines = told(tmp_path, capsys, result(tmp_path, "//:x", *cases, status="TIMEOUT"))
    assert (code, lines[-1]) == (1, f"{len(cases)} passed, 1 failed")


def test_a_target_that_was_not_built_is_red(tmp_path, capsys):
    """A build error is a failure; a target that does not fit the platform is not."""

    def aborted(label: str, reason: str) -> dict:
        return {
            "id": {"targetCompleted": {"label": label}},
            "aborted": {"reason": reason, "description": "no such file"},
        }

    events = [aborted("//:broken", "ANALYSIS_FAILURE"), aborted("//:other_engine", "SKIPPED")]
    code, lines = told(tmp_path, capsys, result(tmp_path, "//:x", "passed"), *events)
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")
    assert "    FAILED no such file" in lines
    assert "    SKIPPED //:other_engine" in lines


def test_nothing_is_no_success(tmp_path, capsys):
    """A run without a single case is red, and so is one that never wrote its events."""
    assert told(tmp_path, capsys) == (1, ["0 passed, 0 failed"])
    assert summary.main([str(tmp_path / "never written")]) == 1
    assert capsys.readouterr().out == "0 passed, 1 failed\n"
