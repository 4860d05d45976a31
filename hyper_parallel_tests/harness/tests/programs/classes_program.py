"""Cases in classes of pytest and of unittest, with fixtures of every scope, and a failure in the middle."""

from __future__ import annotations

import unittest

import pytest
import torch.distributed as dist

UP: list[str] = []


@pytest.fixture(scope="module")
def module_fixture():
    dist.barrier()
    UP.append("module")
    yield
    dist.barrier()
    UP.remove("module")


@pytest.fixture(scope="class")
def class_fixture(module_fixture):
    dist.barrier()
    UP.append("class")
    yield
    dist.barrier()
    UP.remove("class")


class TestFirst:
    def test_fixtures_are_up(self, class_fixture):
        assert UP == ["module", "class"]

    def test_fails(self, class_fixture, world):
        assert world.rank != 0

    def test_fixtures_are_up_again(self, class_fixture):
        assert UP == ["module", "class"]


def test_class_fixture_is_down(module_fixture):
    assert UP == ["module"]


class TestUnittest(unittest.TestCase):
    def setUp(self) -> None:
        self.prepared = True

    def test_passes(self) -> None:
        assert self.prepared

    def test_fails_too(self) -> None:
        with self.subTest("a part"):
            self.assertEqual(1, 2)  # noqa: PT009  what unittest people write

    def test_skips(self) -> None:
        self.skipTest("on all ranks")


@pytest.mark.xfail(reason="known", strict=True)
def test_expected_failure():
    pytest.fail("as expected")


@pytest.mark.xfail(reason="known", strict=True)
def test_unexpected_pass():
    pass
