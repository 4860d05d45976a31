"""What torchrun_test promises about the process that a case runs in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LC_ALL", "C.UTF-8"),
        ("MKL_NUM_THREADS", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("PYTHONHASHSEED", "0"),
        ("TZ", "UTC"),
    ],
)
def test_a_variable_has_one_value_whoever_starts_the_test(name, value):
    """Threads, hashing, locale and time zone do not depend on the caller."""
    assert os.environ[name] == value


def test_nothing_is_imported_from_outside():
    """The import path is the runfiles, the environment's packages and the standard library."""
    given = os.environ["PYTHONPATH"].split(":")
    strange = [entry for entry in sys.path if entry not in given and not entry.startswith(sys.base_prefix)]
    assert given[0] == str(Path.cwd())
    assert not strange


def test_the_users_own_packages_and_start_up_files_are_off():
    """No user site, no site hooks, no current directory on the path."""
    assert sys.flags.no_user_site
    assert sys.flags.no_site
    assert sys.flags.safe_path


def test_home_is_the_tests_own():
    """A case that writes to the home directory writes to its scratch directory."""
    assert Path.home() == Path(os.environ["TEST_TMPDIR"])
