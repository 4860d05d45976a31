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


def judged(name: str, verdict: str, contracts: str, message: str = "", **properties: str) -> str:
    """A red case as the harness reports it, on torch_native 2.13.0."""
    said = {"verdict": verdict, "contracts": contracts, "engine": "torch_native", "engine_version": "2.13.0"}
    inner = "".join(f'<property name="{key}" value="{value}"/>' for key, value in (said | properties).items())
    return (
        f'<testcase file="x_test.py" name="{name}"><properties>{inner}</properties>'
        f'<failure message="{message}"/></testcase>'
    )


def result(folder: Path, label: str, *cases: str, status: str = "PASSED", run: int = 1) -> dict:
    """The event of one run of a target whose report holds `cases`, of CASES or as XML; without any it has none."""
    xml = folder / f"{label.strip('/:')}{run}.xml"
    if cases:
        xml.write_text(
            f"<testsuites><testsuite>{''.join(CASES.get(case, case) for case in cases)}</testsuite></testsuites>"
        )
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
    assert "    //:x b: first line" in lines
    assert [line for line in lines if line.startswith("expected broken") and line.endswith(": 1")]
    assert [line for line in lines if line.startswith("not offered") and line.endswith(": 1")]


def test_newly_broken_and_newly_fixed_contracts_are_apart(tmp_path, capsys):
    """Each by its id with its cases, apart from each other and from what is red for other reasons."""
    cases = [
        judged("test_a[2]", "assertion", "COL-1-02 COL-1-01", "assertion: rank 1 of 2; 3 != 4"),
        judged("test_b", "crash", "COL-1-02", "crash: rank 0 of 2"),
        judged("test_c", "unexpectedly-held", "COL-2-01", "holds although it is expected to be broken"),
        judged("test_d", "leak", "COL-1-03", "leak: a thread is left"),
        judged("test_e", "assertion", "", "no contract here"),
        judged("test_f", "assertion", "COL-1-04", "under a fault", fault="some-fault"),
    ]
    code, lines = told(tmp_path, capsys, result(tmp_path, "//:x", *cases, status="FAILED"))
    assert (code, lines[1:]) == (
        1,
        [
            "NEWLY BROKEN on torch_native 2.13.0: 2 contracts (mend it, or enter it in the engine's expectations)",
            "    COL-1-01",
            "        x_test.py::test_a[2]: assertion: rank 1 of 2; 3 != 4",
            "    COL-1-02",
            "        x_test.py::test_a[2]: assertion: rank 1 of 2; 3 != 4",
            "        x_test.py::test_b: crash: rank 0 of 2",
            "NEWLY FIXED on torch_native 2.13.0: 1 contract (remove its entry from the engine's expectations)",
            "    COL-2-01",
            "        x_test.py::test_c: holds although it is expected to be broken",
            "RED FOR OTHER REASONS: 3",
            "    //:x x_test.py::test_d: leak: a thread is left",
            "    //:x x_test.py::test_e: no contract here",
            "    //:x x_test.py::test_f: under a fault",
            "0 passed, 6 failed",
        ],
    )


def test_a_case_that_fails_in_each_run_is_named_once(tmp_path, capsys):
    """All runs count, and the contract's list stays readable."""
    case = judged("test_a", "assertion", "COL-1-01", "3 != 4")
    events = [result(tmp_path, "//:x", case, status="FAILED", run=run) for run in (1, 2)]
    _, lines = told(tmp_path, capsys, *events)
    assert sum("test_a" in line for line in lines) == 1
    assert lines[-1] == "0 passed, 2 failed"


def test_a_green_run_names_no_contract(tmp_path, capsys):
    """Known defects that show, and cases that pass, are nothing new."""
    _, lines = told(tmp_path, capsys, result(tmp_path, "//:x", "passed", "expected-broken"))
    assert not [line for line in lines if "NEWLY" in line or "RED" in line]


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
    assert "    //:broken no such file" in lines
    assert "    SKIPPED //:other_engine" in lines


def test_nothing_is_no_success(tmp_path, capsys):
    """A run without a single case is red, and so is one that never wrote its events."""
    assert told(tmp_path, capsys) == (1, ["0 passed, 0 failed"])
    assert summary.main([str(tmp_path / "never written")]) == 1
    assert capsys.readouterr().out == "0 passed, 1 failed\n"
