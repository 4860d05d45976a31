"""Cases that are left out, on small trees: none that judges an engine, and no other without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.contract_check import checks
from hyper_parallel_tests.contract_check.samples import L0, case, changed

OURS = "harness/tests/l0_a_test.py"
ADVICE = "give the case a target with enough cards, or record a defect in the engine's expectations"


@pytest.fixture
def broken(tmp_path: Path):
    """Problems of the good tree after changes: path -> new text, None to leave the file out."""
    return lambda check, changes: checks.problems(check, changed(tmp_path, changes))


@pytest.mark.parametrize("path", [L0, "interactions/l3_a_test.py", "endurance/l4_a_test.py", "domains/col/setting.py"])
@pytest.mark.parametrize(
    ("text", "what"),
    [
        (case(above='@pytest.mark.skip(reason="later")'), "pytest.mark.skip"),
        (case(above='@pytest.mark.skipif(torch.x, reason="the device has no such memory")'), "pytest.mark.skipif"),
        (case('    if torch.x:\n        pytest.skip("the device has no such memory")'), "pytest.skip"),
        (case("    raise pytest.skip.Exception('later')"), "pytest.skip"),
        (case('    pytest.importorskip("x")'), "pytest.importorskip"),
        (case(above="@pytest.mark.xfail"), "pytest.mark.xfail"),
        (case("    pytest.xfail('later')"), "pytest.xfail"),
        (case('    from pytest import skip as leave\n    leave("later")'), "pytest.skip"),
        (case("    ledger.skipTest('later')"), "skipTest"),
        (case(above="import unittest\n@unittest.skipUnless(torch.x, 'why')"), "unittest.skipUnless"),
        (case() + "pytestmark = pytest.mark.skipif(torch.x, reason='why')\n", "pytest.mark.skipif"),
        (
            case(above='@pytest.mark.parametrize("ledger", [pytest.param(1, marks=pytest.mark.xfail)])'),
            "pytest.mark.xfail",
        ),
    ],
    ids=[
        "skip",
        "skipif",
        "call",
        "exception",
        "importorskip",
        "xfail",
        "xfail_call",
        "other_name",
        "method",
        "unittest",
        "file",
        "param",
    ],
)
def test_a_case_that_judges_an_engine_is_never_left_out(broken, path, text, what):
    """Under a condition or not, in a case or in what cases share: the message says what to do instead."""
    (found,) = broken(checks.no_skip, {path: text})
    assert found.startswith(f"{path}:")
    assert found.endswith(f": {what}: {ADVICE}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (case(above='@pytest.mark.skip(reason="later")'), "without a condition"),
        (case(above="@pytest.mark.xfail"), "expectations"),
        (case(above='@pytest.mark.skipif(True, reason="never")'), "without a condition"),
        (case(above="@pytest.mark.skipif(torch.x)"), "gives no reason"),
        (case('    pytest.skip("later")'), "without a condition"),
        (case("    if torch.x:\n        pytest.skip()"), "gives no reason"),
        (case('    if torch.x:\n        pytest.skip("")'), "gives no reason"),
        (case('    pytest.importorskip("x")'), "without a condition"),
        (
            case(above='@pytest.mark.parametrize("ledger", [pytest.param(1, marks=pytest.mark.xfail)])'),
            "expectations",
        ),
        (case() + 'pytestmark = pytest.mark.skip("all")\n', "without a condition"),
    ],
)
def test_a_skip_without_condition_or_reason_is_told(broken, text, said):
    """By mark, by call, on a parameter or for a whole file."""
    found = broken(checks.no_skip, {OURS: text})
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    "text",
    [
        case(above='@pytest.mark.skipif(torch.x, reason="the device has no such memory")'),
        case('    if torch.x:\n        pytest.skip("the device has no such memory")\n    assert torch'),
    ],
)
def test_a_documented_condition_is_left_alone(broken, text):
    """A condition with its reason."""
    assert broken(checks.no_skip, {OURS: text}) == []
