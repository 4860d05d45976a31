"""The table of engines: what may be said of a contract, and that holes and reproductions are seen."""

from __future__ import annotations

import json

import pytest

from hyper_parallel_tests.contract_check.samples import CONTRACTS, changed
from tools.report import engines
from tools.report.engines_pages import markdown, text
from tools.report.engines_table import MixedRun, Run, rows
from tools.report.results import Case, save

FILE = "hyper_parallel_tests/domains/col/l1_b_test.py"


def ran(verdict: str, name: str = "test_it", headline: str = "", **given: object) -> Case:
    """A case of COL-1-01 on an engine called one."""
    known = {"contracts": ("COL-1-01",), "cards": 2, "engine": "one", "engine_version": "2.0"}
    red = verdict in {"assertion", "crash", "error", "hang", "leak", "stopped", "uneven", "unexpectedly-held"}
    return Case(f"{FILE}::{name}", verdict, red, headline, **(known | given))


def cell(tmp_path, *cases: Case):
    """What is said of COL-1-01, which the tree's test_it cites, after one run."""
    (row,) = rows(changed(tmp_path, {}), [Run.of(cases)], layers=["l1"])
    return row.cells[0]


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ([], "not run"),
        ([ran("passed")], "holds"),
        ([ran("passed", "test_it[a]"), ran("passed", "test_it[b]")], "holds"),
        ([ran("passed", "test_it[a]"), ran("expected-broken", "test_it[b]")], "broken (1 of 2 cases, 1 hold)"),
        ([ran("expected-broken")], "broken"),
        ([ran("crash")], "broken (1 newly broken)"),
        (
            [ran("error", "test_it[a]"), ran("leak", "test_it[b]")],
            "broken (1 of 2 cases, 1 not judged, 1 newly broken)",
        ),
        ([ran("not-offered", "test_it[a]"), ran("not-offered", "test_it[b]")], "not offered"),
        (
            [ran("passed", "test_it[a]"), ran("not-offered", "test_it[b]"), ran("not-offered", "test_it[c]")],
            "holds in part (1 of 3 cases, 2 not offered)",
        ),
        (
            [ran("not-offered", "test_it[a]"), ran("hang", "test_it[b]")],
            "broken (1 of 2 cases, 1 not offered, 1 newly broken)",
        ),
        ([ran("unexpectedly-held")], "holds (1 newly fixed)"),
        ([ran("stopped")], "not judged"),
        ([ran("skipped", "test_it[a]"), ran("not-offered", "test_it[b]")], "not judged (1 of 2 cases, 1 not offered)"),
        ([ran("passed", "test_other")], "holds in part (1 of 1 cases, 1 not run)"),
        ([ran("passed", fault="some-fault")], "not run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_said_of_a_contract(tmp_path, cases, said):
    """It holds only if all of its cases ran and held, one broken case breaks it, and a part is told as a part."""
    assert cell(tmp_path, *cases).text == said


def test_the_worst_of_several_results_counts(tmp_path):
    """A case that holds in one run of the target and not in another is broken, in either order."""
    assert cell(tmp_path / "1", ran("passed"), ran("hang")).word == "broken"
    assert cell(tmp_path / "2", ran("hang"), ran("passed")).word == "broken"


def test_a_run_is_of_one_engine():
    """Results of two engines do not make a column, and the message says which they are."""
    with pytest.raises(MixedRun, match=r"logs holds results of one and of two: .*by itself"):
        Run.of([ran("passed"), ran("passed", engine="two")], where="logs")


def test_a_column_has_the_newest_version():
    """Each target sees a part of an engine from a checkout, and the newest commit in it."""
    versions = ["0.1.post20260305+ga", "0.1.post20251201+gb", "unknown"]
    run = Run.of([ran("passed", engine_version=version) for version in versions])
    assert run.name == "one 0.1.post20260305+ga"


BROKEN = ran("expected-broken", "test_it[a]", "Ranks are swapped.", reproduction="_broken_ranks.py")
NEW = ran("assertion", "test_it[b]", "assertion: 3 != 4")
DECLINED = ran("not-offered", "test_it[c]", "engine one does not offer ring: no rings")


def test_plain_text(tmp_path):
    """Columns, counts, then each defect with its reproduction, each reason with its contracts, and the holes."""
    runs = [Run.of([BROKEN, NEW, DECLINED]), Run.of([ran("passed", engine_version="1.0")], name="old")]
    assert text(runs, rows(changed(tmp_path, {}), runs)).splitlines() == [
        "contract  one 2.0                                               old",
        "COL-0-01  not run                                               not run",
        "COL-1-01  broken (2 of 3 cases, 1 not offered, 1 newly broken)  holds",
        "",
        "one 2.0: of 2 contracts, 1 broken, 1 not run",
        "old: of 2 contracts, 1 holds, 1 not run",
        "",
        "Broken on one 2.0",
        "  COL-1-01",
        "      Ranks are swapped. hyper_parallel_tests/engines/one/_broken_ranks.py (col/l1_b_test.py::test_it[a])",
        "      newly broken: assertion: 3 != 4. python -m hyper_parallel_tests.harness.launch --engine one --cards 2 "
        f"'{FILE}::test_it[b]' (col/l1_b_test.py::test_it[b])",
        "",
        "Not offered on one 2.0",
        "  engine one does not offer ring: no rings",
        "      COL-1-01 (in part)",
        "",
        "Not run on one 2.0",
        "  COL-0-01",
        "",
        "Not run on old",
        "  COL-0-01",
    ]


def test_a_case_of_jobs_can_be_run_again(tmp_path):
    """The command starts it as it was started."""
    runs = [Run.of([ran("assertion", cards=4, jobs=True)])]
    assert "--cards 4 --jobs '" in text(runs, rows(changed(tmp_path, {}), runs))


def test_markdown(tmp_path):
    """A row a contract with its sentence, whose bars do not break the table."""
    runs = [Run.of([BROKEN])]
    tree = changed(tmp_path, {"domains/col/contracts.toml": CONTRACTS.replace("A group", "A | group")})
    lines = markdown(runs, rows(tree, runs)).splitlines()
    assert lines[:4] == [
        "| contract | promise | one 2.0 |",
        "|---|---|---|",
        "| COL-0-01 | Ranks are row-major. | not run |",
        "| COL-1-01 | A \\| group can be made again. | broken |",
    ]
    assert "## Broken on one 2.0" in lines


XML = (
    '<testsuites><testsuite><testcase file="{file}" name="{name}"><properties>'
    '<property name="verdict" value="passed"/><property name="contracts" value="COL-1-01"/>'
    '<property name="engine" value="one"/><property name="engine_version" value="2.0"/>'
    "</properties></testcase></testsuite></testsuites>"
)


def test_results_come_from_build_events_or_xml(tmp_path):
    """Events, one XML and a folder of XMLs are the same to the table; one name over several makes one run."""
    folder = tmp_path / "logs" / "target"
    folder.mkdir(parents=True)
    for name in ("test_a", "test_b"):
        (folder / f"{name}.xml").write_text(XML.format(file=FILE, name=name))
    place = (folder / "test_a.xml").as_uri()
    event = {
        "id": {"testResult": {"label": "//:x"}},
        "testResult": {"status": "PASSED", "testActionOutput": [{"name": "test.xml", "uri": place}]},
    }
    (tmp_path / "events.json").write_text(json.dumps(event) + "\n")
    found = engines.runs(
        ["events.json", "logs", "ours=logs/target/test_a.xml", "ours=logs/target/test_b.xml"], tmp_path
    )
    assert [(run.name, [case.nodeid.partition("::")[2] for case in run.cases]) for run in found] == [
        ("one 2.0", ["test_a"]),
        ("one 2.0", ["test_a", "test_b"]),
        ("ours", ["test_a", "test_b"]),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), ("", "no case that judges a contract"), ("no events", "expected what bazel test")],
    ids=["absent", "empty", "other"],
)
def test_without_results_there_is_no_column(tmp_path, content, message):
    """A wrong path is an error: an empty column would look like holes of the net."""
    if content is not None:
        (tmp_path / "events").write_text(content)
    with pytest.raises(engines.NoResults, match=message):
        engines.runs(["events"], tmp_path)


def test_a_run_can_be_kept(tmp_path):
    """A saved run is read as it was: the reports that its events point to may be gone by then."""
    run = Run.of([BROKEN, NEW, DECLINED])
    save(run.cases, tmp_path / "kept")
    assert engines.runs(["kept"], tmp_path) == [run]
