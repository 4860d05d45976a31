"""Six healthy cases that say that they ran."""

from __future__ import annotations

import os

import pytest


@pytest.mark.parametrize("letter", list("abcdef"))
def test_letter(letter):
    print(f"ran {letter}")


def test_environment(artifacts):
    (artifacts / "kept").write_text(os.environ["TMPDIR"])
