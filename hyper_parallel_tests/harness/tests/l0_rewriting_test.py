"""Test files are compiled once a launch, and the order in which their cases are tried against a fault."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest
from _pytest.assertion import rewrite

from hyper_parallel_tests.harness import channel, rewriting
from hyper_parallel_tests.harness.proving import in_turns


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test file; what pytest compiles by is itself again at the end."""
    monkeypatch.setattr(rewrite, "_rewrite_test", rewrite._rewrite_test)
    path = tmp_path / "l1_topic_test.py"
    path.write_text("def check():\n    three = 3\n    assert three == 4\n")
    return path


def compiled(file: Path, config: pytest.Config) -> CodeType:
    return rewrite._rewrite_test(file, config)[1]


def test_compiled_once(file, pytestconfig):
    """pytest gets the same code each time, and a failed assertion tells the values."""
    rewriting.prepare([f"{file}::check"])
    code = compiled(file, pytestconfig)
    assert compiled(file, pytestconfig) is code
    found = {}
    exec(code, found)
    with pytest.raises(AssertionError, match=r"^assert 3 == 4"):
        found["check"]()


def test_other_files(file, pytestconfig):
    """A file that was not prepared, or that nobody can compile, is pytest's business as ever."""
    broken = file.with_name("l1_broken_test.py")
    broken.write_text("def check(:\n")
    rewriting.prepare([str(broken), str(file.with_name("l1_missing_test.py"))])
    assert compiled(file, pytestconfig) is not compiled(file, pytestconfig)
    with pytest.raises(SyntaxError):
        compiled(broken, pytestconfig)


def test_cases_in_turns():
    """The first parametrisation of each function comes first, each case once, with the number that ranks know it by."""
    names = ["a[1]", "a[2]", "a[3]", "b", "c[1]", "c[2]"]
    cases = [channel.CaseInfo(f"l1_test.py::{name}", ("l1_test.py", 1, name), (), None, False, "") for name in names]
    assert [(index, info.location[2]) for index, info in in_turns(cases)] == [
        (0, "a[1]"), (3, "b"), (4, "c[1]"), (1, "a[2]"), (5, "c[2]"), (2, "a[3]"),
    ]  # fmt: skip
