"""The table from plan to assertion, and that it tells of holes."""

from __future__ import annotations

from pathlib import Path

import pytest
from absl import app

import hyper_parallel_tests
from hyper_parallel_tests.contract_check.samples import BUILD, CONTRACTS, L0, L1, case, changed
from hyper_parallel_tests.contract_check.tree import Tree
from tools.report.plan import show
from tools.report.plan_table import holes, markdown, rows

TOML = "domains/col/contracts.toml"
PLANNED = {TOML: CONTRACTS.replace('"S0"', '"S1 L1-01"')}

CALLS_A_HELPER = """
from hyper_parallel_tests.domains.col.shared import check
from hyper_parallel_tests.harness import contract

@contract("COL-0-01")
def test_it(ledger):
    check(1)
    assert 1 + 1 == 2
"""
HELPER = """
def check(value):
    assert value == 1
"""


def missing(tree: Tree) -> list[str]:
    """Holes of the one domain of the tree."""
    return holes(rows(tree), whole=False)


def test_a_row_leads_from_the_plan_to_the_assertions(tmp_path):
    """Source, contract, target, case and line, for every case; a plan without holes."""
    tree = changed(tmp_path, PLANNED)
    assert markdown(rows(tree), missing(tree)).splitlines()[:4] == [
        "| plan | contract | target | case | assertions at |",
        "|---|---|---|---|---|",
        "| S1 L1-01 | COL-0-01 | `//hyper_parallel_tests/domains/col:l0` | `col/l0_a_test.py::test_it` | 6 |",
        "| S1 L1-01 | COL-1-01 | `//hyper_parallel_tests/domains/col:l1_2card` | `col/l1_b_test.py::test_it` | 6 |",
    ]
    assert missing(tree) == []


def test_assertions_of_called_functions_have_their_file(tmp_path):
    """Lines of the case come first, then those of what it calls."""
    tree = changed(tmp_path, PLANNED | {L0: CALLS_A_HELPER, "domains/col/shared.py": HELPER})
    assert rows(tree)[0].assertions == ("8", "shared.py:3")


@pytest.mark.parametrize(
    ("changes", "hole"),
    [
        pytest.param({L0: None}, "COL-0-01: no case", id="no_case"),
        pytest.param(
            {"domains/col/BUILD.bazel": BUILD.replace("l1_b_test.py", "l1_c_test.py")},
            "COL-1-01: l1_b_test.py::test_it is in no target",
            id="no_target",
        ),
        pytest.param({L0: case("    pass")}, "COL-0-01: l0_a_test.py::test_it asserts nothing", id="no_assertion"),
        pytest.param(
            {L1: case(above='@contract("COL-0-01")'), L0: case(above='@contract("COL-1-01")')},
            "COL-0-01: no case of its layer, l0",
            id="other_layer",
        ),
    ],
)
def test_a_hole_is_found(tmp_path, capsys, changes, hole):
    """What a plan case lacks is named, printed, and the exit code tells; without the plan it is no hole."""
    tree = changed(tmp_path / "planned", PLANNED | changes)
    assert hole in missing(tree)
    assert show(tree, ["col"], []) == 1
    assert f"- {hole}\n" in capsys.readouterr().out
    unplanned = changed(tmp_path / "unplanned", changes)
    assert show(unplanned, ["col"], []) == 0


def test_a_plan_case_without_contract_is_a_hole(tmp_path):
    """A table of all domains lacks the plan's cases that no contract holds; layers narrow what is asked for."""
    everything = rows(changed(tmp_path, {}))
    assert "FSDP-L1-13: no contract" in holes(everything)
    assert "FSDP-L2-03: no contract" in holes(everything)
    assert "FSDP-L2-03: no contract" not in holes(everything, ["l1", "l2"])
    assert {"IX-23: no contract", "EN-06: no contract"} <= {*holes(everything, ["l3", "l4"])}


def test_domains_and_layers_choose_rows(tmp_path):
    """Only what is asked for is told; an unknown domain is an error that lists the known ones."""
    tree = changed(tmp_path, PLANNED)
    assert [row.contract.id for row in rows(tree, ["col"], ["l1"])] == ["COL-1-01"]
    with pytest.raises(app.UsageError, match="no domain cool: expected some of col"):
        show(tree, ["cool"], [])


def test_the_table_can_be_written(tmp_path, monkeypatch, capsys):
    """To a file where the command was typed, which need not be where it runs."""
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    tree = changed(tmp_path / "tree", PLANNED)
    assert show(tree, ["col"], [], out="plan.md") == 0
    assert (tmp_path / "plan.md").read_text() == markdown(rows(tree), missing(tree))
    assert "plan.md: 2 rows, 0 holes" in capsys.readouterr().out


def test_the_plan_has_no_hole_below_the_couplings():
    """In this tree every contract has its row, and every plan case of layers 0 to 2 its assertion."""
    tree = Tree(Path(hyper_parallel_tests.__path__[0]))
    assert {row.contract.id for row in rows(tree)} == set(tree.contracts)
    below = ["l0", "l1", "l2"]
    assert holes(rows(tree, layers=below), below) == []
