"""The rule about features.toml on small trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.contract_check.features import every_feature_is_mapped
from hyper_parallel_tests.contract_check.samples import FEATURES, changed

COVERED = 'contracts = ["COL-0-01", "COL-1-01"]'


@pytest.fixture
def problems(tmp_path: Path):
    """Problems of the good tree with another features.toml, None for none."""
    return lambda text: list(every_feature_is_mapped(changed(tmp_path, {"features.toml": text})))


def test_good_features(problems):
    """Contracts that are there, or a reason, are enough."""
    assert problems(FEATURES) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("COL-1-01", "COL-9-99", "Groups: COL-9-99 is in no contracts.toml"),
        (COVERED, "", "Groups: it has neither contracts nor a reason"),
        (COVERED, "contracts = []", "Groups: it has neither contracts nor a reason"),
        (COVERED, 'uncovered = " "', "Groups: it has neither contracts nor a reason"),
        (COVERED, f'{COVERED}\nuncovered = "no time"', "Groups: it has both"),
        (COVERED, 'contracts = "COL-0-01"', "Groups: contracts must be a list"),
        (COVERED, 'contracts = ["COL-0-01", "COL-0-01"]', "Groups: COL-0-01 is named 2 times"),
        (COVERED, f'{COVERED}\nby = "me"', "Groups: by is no key of a feature"),
        ('area = "Tools"\n', "", "Graphs: it has no area"),
        ('line = "Groups"', "", "feature 1: it has no line"),
        ('area = "Tools"\nline = "Graphs"', 'area = "Runtime"\nline = "Groups"', "Groups: it stands twice in Runtime"),
    ],
)
def test_bad_features(problems, old, new, said):
    """What an entry lacks, has too much of or has wrong is told by its line."""
    found = problems(FEATURES.replace(old, new, 1))
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "it is missing"), ("", "it has no [[feature]]"), ("[[feature", "it cannot be read")],
    ids=["missing", "empty", "unreadable"],
)
def test_no_features(problems, text, said):
    """A map that is not there, is empty or cannot be read is a problem of its own."""
    (found,) = problems(text)
    assert said in found
