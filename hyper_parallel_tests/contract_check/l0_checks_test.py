"""Each rule on small trees: a good one keeps all of them, and each bad one breaks the rule that it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.contract_check import checks
from hyper_parallel_tests.contract_check.checks import CHECKS
from hyper_parallel_tests.contract_check.samples import (
    BUILD,
    CASE,
    CONTRACTS,
    EXPECTATIONS,
    FAULTS,
    L0,
    L1,
    LEDGER,
    case,
    changed,
)

NEED_CONTRACTS = {
    checks.every_contract_has_a_case,
    checks.every_case_cites_contracts,
    checks.every_contract_has_a_fault,
    checks.every_feature_is_mapped,
    checks.expectations_are_real,
}


@pytest.fixture
def broken(tmp_path: Path):
    """Problems of the good tree after changes: path -> new text, None to leave the file out."""
    return lambda check, changes: checks.problems(check, changed(tmp_path, changes))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_good_tree_has_no_problems(broken, check):
    """All rules hold together."""
    assert broken(check, {}) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_bad_contracts_are_the_matter_of_one_rule(broken, check):
    """A rule that needs them says so in a line; one that does not is judged as ever."""
    found = broken(check, {"domains/col/contracts.toml": "[[contract]"})
    if check is checks.contracts_are_well_formed:
        assert [one.split(": ")[:2] for one in found] == [["domains/col/contracts.toml", "no valid TOML"]]
    elif check in NEED_CONTRACTS:
        assert found == ["cannot be judged until contracts_are_well_formed holds"]
    else:
        assert found == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", ["domains/col/test_more.py", "domains/new/more_test.py", "faults/more_test.py"])
def test_a_bad_name_is_the_matter_of_one_rule(broken, check, path):
    """Once it has its right name, the other rules see the file."""
    worst = FAULTS + "def test_it(a):\n    import pytest\n    pytest.skip()\n    a.allclose(a)\n"
    found = broken(check, {path: worst})
    if check is checks.every_file_has_a_target:
        assert found == [f"{path}: call it l<k>_<topic>_test.py, after its layer"]
    else:
        assert found == []


def test_problems_are_counted(tmp_path):
    """One problem is no plural; none is no report."""
    report = checks.report(checks.contracts_are_well_formed, changed(tmp_path, {}))
    assert report == ""
    tree = changed(tmp_path, {"domains/new/l0_a_test.py": case()})
    assert checks.report(checks.contracts_are_well_formed, tree).startswith("1 problem:\ndomains/new: ")
    tree = changed(tmp_path, {"domains/more/l0_a_test.py": case()})
    assert checks.report(checks.contracts_are_well_formed, tree).startswith("2 problems:\ndomains/more: ")


# -- contracts


def test_a_bad_contract_file_is_told(broken):
    """What the loader refuses is a problem, and so is a bad expectation."""
    text = CONTRACTS.replace('layer = "l1"', 'layer = "l2"')
    assert "of layer l1 by its id" in broken(checks.contracts_are_well_formed, {"domains/col/contracts.toml": text})[0]
    changes = {"engines/one/expectations/col.toml": EXPECTATIONS.replace("_broken_again.py", "again.sh")}
    assert "reproduction must be a script" in broken(checks.contracts_are_well_formed, changes)[-1]


def test_a_domain_without_contracts_is_told(broken):
    """Tests in a domain folder promise something."""
    assert broken(checks.contracts_are_well_formed, {"domains/new/l0_a_test.py": case()}) == [
        "domains/new: it has tests but no contracts.toml: write down what they promise"
    ]


@pytest.mark.parametrize("changes", [{L1: None, L0: CASE.format(layer=1)}, {L1: None}], ids=["wrong_layer", "none"])
def test_a_contract_without_a_case_is_told(broken, changes):
    """A case in a file of another layer does not count."""
    found = broken(checks.every_contract_has_a_case, changes)
    assert "domains/col/contracts.toml: COL-1-01: no case in a file l1_*_test.py cites it: write one" in found


@pytest.mark.parametrize(
    ("above", "said"),
    [
        ("", "cites no contract"),
        ('@contract("COL-0-99")', "contract COL-0-99 is in no contracts.toml"),
        ('@contract("COL-1-01")', "cites no contract of layer l0"),
        ('X = "COL-0-01"\n@contract(X)', "contract(X) is no literal text"),
    ],
)
def test_a_case_that_cites_wrongly_is_told(broken, above, said):
    """No contract, an unknown one, one of another layer only, or one that cannot be read."""
    found = broken(checks.every_case_cites_contracts, {L0: case(above=above)})
    assert any(said in one and one.startswith(f"{L0}:") for one in found)


@pytest.mark.parametrize(
    "above",
    [
        '@contract("COL-0-01", "COL-1-01")',
        '@pytest.mark.contract("COL-0-01")',
        'pytestmark = [contract("COL-0-01")]\n',
        'BOTH = contract("COL-0-01")\n@BOTH',
        '@pytest.mark.parametrize("ledger", [pytest.param(1, marks=contract("COL-0-01"))])',
        'ROWS = [pytest.param(1, marks=contract("COL-0-01"))]\n@pytest.mark.parametrize("ledger", ROWS)',
    ],
    ids=["two", "mark", "file", "name", "param", "param_by_name"],
)
def test_citations_are_found_wherever_pytest_finds_them(broken, above):
    """On the function, its file, its parameters, directly or by a name."""
    assert broken(checks.every_case_cites_contracts, {L0: case(above=above)}) == []


def test_cases_of_classes_and_assignments_count(broken):
    """A method inherits its class's contracts, and a case by assignment is told."""
    text = '@contract("COL-0-01")\nclass TestIt:\n    def test_a(self):\n        assert self\n'
    assert broken(checks.every_case_cites_contracts, {L0: "from x import contract\n" + text}) == []
    bare = text.replace('@contract("COL-0-01")\n', "")
    assert "TestIt::test_a: cites no contract" in broken(checks.every_case_cites_contracts, {L0: bare})[0]
    assert "by assignment" in broken(checks.every_case_cites_contracts, {L0: case() + "test_more = test_it\n"})[0]


# -- targets


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"domains/col/BUILD.bazel": None}, "no BUILD.bazel above it"),
        (
            {"domains/col/BUILD.bazel": BUILD.replace("l1_b_test.py", "l1_c_test.py")},
            "no layer_test lists it",
        ),
        (
            {"domains/col/BUILD.bazel": BUILD.replace('"l1_2card"', '"l2_2card"')},
            "listed in l2_2card: move it",
        ),
        (
            {"domains/col/BUILD.bazel": BUILD.replace('["l1_b_test.py"]', "select({})")},
            "cannot read `select({})`",
        ),
        ({"domains/col/test_more.py": case()}, "test_more.py: call it l<k>_<topic>_test.py"),
        ({"domains/col/more_test.py": case()}, "more_test.py: call it l<k>_<topic>_test.py"),
    ],
    ids=["no_build_file", "no_target", "wrong_layer", "unreadable", "prefix", "no_layer"],
)
def test_a_file_without_a_target_of_its_layer_is_told(broken, changes, said):
    """A file that never runs, or runs as another layer."""
    assert any(said in one for one in broken(checks.every_file_has_a_target, changes))


# -- tolerances


@pytest.mark.parametrize(
    "body",
    [
        "torch.testing.assert_close(a, b)",
        "torch.testing.assert_close(a, b, atol=1e-3, rtol=0)",
        "assert torch.allclose(a, b)",
        "assert a.allclose(b)",
        "assert a == pytest.approx(b)",
        "check(a, b, atol=1e-3)",
        "check(a, b, rtol=TOLERANCE)",
        "assert abs(a - b) < 1e-5",
        "assert abs(a - b) < 0.5",
        "assert (a - b).abs().max() <= 10 ** -5",
        "assert 1e-5 > abs(a - b)",
        "assert norm <= max_norm + 1e-6",
        "assert abs(a - b) < TOLERANCE",
        "assert (a - b).norm() < 2 * TOLERANCE",
        "import math\n    assert math.isclose(a, b)",
        "import numpy as np\n    np.testing.assert_allclose(a, b)",
        "from torch.testing import assert_close as close\n    close(a, b)",
    ],
)
def test_a_tolerance_of_its_own_is_told(broken, body):
    """Spelled out, implied by a default, by a name, or inside a comparison."""
    text = "TOLERANCE = 1e-4\n" + case(f"    {body}")
    found = broken(checks.no_literal_tolerance, {L0: text})
    assert len(found) == 1
    assert found[0].startswith(f"{L0}:")


@pytest.mark.parametrize(
    "body",
    [
        "assert_close(a, b, ledger['exact'])",
        "assert abs(a - b) <= ledger['clip_norm_bound'].norm",
        "assert len(a) > 10",
        "assert after - before < 2",
        "assert share < 0.5",
        "assert abs(a) == 0.001",
        "model.set(1e-5)",
    ],
)
def test_what_is_no_tolerance_is_left_alone(broken, body):
    """The ledger's numbers, counts, bounds and settings."""
    assert broken(checks.no_literal_tolerance, {L0: case(f"    {body}")}) == []


# -- assertions


@pytest.mark.parametrize(
    "body",
    [
        "    ledger.run()",
        "    pass",
        "    assert True",
        '    assert (ledger, "always true")',
        "    assert 1",
        "    helper()",
    ],
)
def test_a_case_that_cannot_fail_is_told(broken, body):
    """No assertion, one that is always true, or a helper that has none."""
    text = case(body) + "\ndef helper():\n    print(1)\n"
    assert "asserts nothing" in broken(checks.every_case_asserts, {L0: text})[0]


@pytest.mark.parametrize(
    "body",
    [
        "    assert ledger",
        "    assert_close(1, 1, ledger)",
        "    with pytest.raises(ValueError, match='x'):\n        ledger.run()",
        "    helper()",
        "    shared()",
        "    if ledger:\n        pytest.fail('it is')",
    ],
)
def test_an_assertion_is_found_where_it_is(broken, body):
    """In the case, in a helper of the file, or of another file of the tree."""
    text = "from hyper_parallel_tests.domains.col.setting import shared\n" + case(body)
    changes = {
        L0: text + "\ndef helper():\n    inner()\n\ndef inner():\n    helper()\n    assert pytest\n",
        "domains/col/setting.py": "def shared():\n    assert shared\n",
    }
    assert broken(checks.every_case_asserts, changes) == []


# -- expectations


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"engines/one/expectations/col.toml": EXPECTATIONS.replace("COL-1-01", "COL-1-09")},
            "COL-1-09 is in no contracts.toml",
        ),
        (
            {
                "engines/one/expectations/col.toml": EXPECTATIONS.replace(
                    'contract = "COL-1-01"', 'case = "col/l0_a_test.py::test_b"'
                )
            },
            "case col/l0_a_test.py::test_b does not exist",
        ),
        (
            {"engines/one/expectations/_broken_again.py": "print(1)\n" * 30},
            "_broken_again.py has 30 lines: keep it under 30",
        ),
        ({"engines/one/expectations/_broken_again.py": ""}, "_broken_again.py has 0 lines"),
        ({"engines/one/expectations/_broken_again.py": None}, "_broken_again.py does not exist"),
        (
            {"engines/one/expectations/col.toml": None, "engines/one/expectations/rng.toml": EXPECTATIONS},
            "rng.toml: COL-1-01 belongs in col.toml",
        ),
    ],
)
def test_an_expectation_of_nothing_is_told(broken, changes, said):
    """An unknown contract or case, one in another domain's file, and a reproduction that is none."""
    assert any(said in one for one in broken(checks.expectations_are_real, changes))


def test_an_expectation_of_a_case_is_found(broken):
    """A case may be named with or without its parameters, or in part."""
    for name in ("test_it", "test_it[a-b]", "test_*", "*_it[a]"):
        text = EXPECTATIONS.replace('contract = "COL-1-01"', f'case = "col/l0_a_test.py::{name}"')
        assert broken(checks.expectations_are_real, {"engines/one/expectations/col.toml": text}) == []


def test_a_reproduction_of_nothing_is_told(broken):
    """Where its entry is gone, or names another."""
    changes = {"engines/one/expectations/col.toml": EXPECTATIONS.replace("again", "anew")}
    (said,) = broken(checks.every_reproduction_is_named, changes)
    assert said.startswith("engines/one/expectations/_broken_again.py: no entry names it")


# -- the ledger


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"harness/judging/ledger/common.toml": LEDGER}, "[col_fp32] is in another file already"),
        ({"harness/judging/ledger/col.toml": LEDGER.replace("S0", "")}, "source must say something"),
        ({"harness/judging/ledger/new.toml": LEDGER.replace("col", "new")}, "new is no domain"),
    ],
)
def test_a_bad_ledger_is_told(broken, changes, said):
    """All files of it are judged together."""
    assert any(said in one for one in broken(checks.the_ledger_is_whole, changes))
