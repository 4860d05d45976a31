"""The rules about faults on small trees: each contract has one, and each is proven by a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.contract_check import checks
from hyper_parallel_tests.contract_check.samples import BUILD, CASE, FAULTS, L1, changed

BUILD_FILE = "domains/col/BUILD.bazel"
UNPROVEN = (
    "faults/col.py:4: a: no fault_test has both this catalogue and a case of {}: add the file to its srcs or proof"
)


@pytest.fixture
def broken(tmp_path: Path):
    """Problems of the good tree after changes: path -> new text, None to leave the file out."""
    return lambda check, changes: checks.problems(check, changed(tmp_path, changes))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (', "COL-1-01"', "", "COL-1-01: no fault has it in must_fail"),
        ("COL-1-01", "COL-9-99", "must_fail names COL-9-99, which is in no contracts.toml"),
        ('layer="l0"', 'layer="l1"', "its layer is l1, but the lowest in must_fail is l0"),
        ('["COL-0-01", "COL-1-01"]', "compute()", "must_fail must be a list of literal contract ids"),
        ('["COL-0-01", "COL-1-01"]', "[]", "must_fail must be a list of literal contract ids"),
    ],
)
def test_a_contract_without_a_fault_is_told(broken, old, new, said):
    """No fault for a contract, and a fault for no contract."""
    found = broken(checks.every_contract_has_a_fault, {"faults/col.py": FAULTS.replace(old, new)})
    assert any(said in one for one in found)


def test_contracts_of_a_fault_may_have_a_name(broken):
    """A list that several faults share is followed."""
    text = FAULTS.replace('["COL-0-01", "COL-1-01"]', "BOTH").replace(
        "@fault", 'BOTH = ["COL-0-01", "COL-1-01"]\n@fault'
    )
    assert broken(checks.every_contract_has_a_fault, {"faults/col.py": text}) == []


def build(*fault_tests: str) -> str:
    """The good tree's BUILD file with other fault_test targets."""
    kept = [line for line in BUILD.splitlines() if not line.startswith("fault_test")]
    return "\n".join([*kept, *fault_tests])


@pytest.mark.parametrize(
    ("fault_tests", "unproven"),
    [
        ([], ["COL-0-01", "COL-1-01"]),
        (['fault_test(name = "faults", srcs = glob(["l0_*_test.py"]))'], ["COL-1-01"]),
        (['fault_test(name = "faults", srcs = ["l1_b_test.py"])'], ["COL-0-01"]),
        (
            ['fault_test(name = "faults", srcs = glob(["*_test.py"]), catalogue = ["//x/faults:col_more"])'],
            ["COL-0-01", "COL-1-01"],
        ),
        (
            [
                'fault_test(name = "faults", srcs = ["l0_a_test.py"])',
                'fault_test(name = "faults_2card", srcs = ["l1_b_test.py"], catalogue = ["//x/faults:col_more"])',
            ],
            ["COL-1-01"],
        ),
    ],
    ids=["no_target", "other_files", "other_file", "other_catalogue", "apart"],
)
def test_a_fault_that_no_target_proves_is_told(broken, fault_tests, unproven):
    """The catalogue and a case must meet in one target, for each contract that must fail."""
    found = broken(checks.every_fault_is_proven, {BUILD_FILE: build(*fault_tests)})
    assert found == [UNPROVEN.format(contract) for contract in unproven]


def test_a_case_in_another_contract_of_the_file_proves_nothing(broken):
    """The file is in the target, but cites the contract no more."""
    assert broken(checks.every_fault_is_proven, {L1: CASE.format(layer=0)}) == [UNPROVEN.format("COL-1-01")]


@pytest.mark.parametrize(
    "fault_tests",
    [
        [
            'fault_test(name = "faults", srcs = ["l0_a_test.py"])',
            'fault_test(name = "faults_2card", srcs = ["l1_b_test.py"])',
        ],
        ['FILES = glob(["*_test.py"])', '[fault_test(name = "faults_{}card".format(n), srcs = FILES) for n in [2, 4]]'],
        ['LIST = ["//x/faults:more", "//x/faults:col"]', 'fault_test(srcs = glob(["*.py"]), catalogue = LIST)'],
    ],
    ids=["shared_out", "comprehension", "variable"],
)
def test_a_fault_that_is_proven_is_left_alone(broken, fault_tests):
    """By one target or several, of the domain's own catalogue by default."""
    assert broken(checks.every_fault_is_proven, {BUILD_FILE: build(*fault_tests)}) == []


def test_the_mechanism_is_no_catalogue(broken):
    """What declares no faults of the catalogue may show how one is declared."""
    changes = dict.fromkeys(("faults/__init__.py", "faults/catalogue.py", "faults/patch.py"), FAULTS)
    assert broken(checks.every_fault_is_proven, changes) == []
    assert broken(checks.every_fault_is_proven, {"faults/col_more.py": FAULTS}) == [
        UNPROVEN.format(contract).replace("col.py", "col_more.py") for contract in ("COL-0-01", "COL-1-01")
    ]


def test_a_fault_test_that_cannot_be_read_is_told(broken):
    """Instead of calling everything unproven that it may prove."""
    changes = {BUILD_FILE: build('fault_test(name = "faults", srcs = select({}))')}
    (found,) = broken(checks.every_fault_is_proven, changes)
    assert found.startswith(f"{BUILD_FILE}: unreadable at line 4: cannot read `select({{}})`")


def test_a_fault_without_literal_contracts_is_told_once(broken):
    """By the rule about its contracts only."""
    changes = {"faults/col.py": FAULTS.replace('["COL-0-01", "COL-1-01"]', "compute()")}
    assert broken(checks.every_fault_is_proven, changes) == []
