"""A file that cannot be imported."""

from __future__ import annotations

from hyper_parallel_tests import no_such_module  # noqa: F401


def test_nothing(world):
    pass
