"""The trivial case for PyTorch's MultiProcContinuousTest: ranks are spawned once and run test after test."""

from __future__ import annotations

import sys
import types
import unittest

from tools.bench.cases import settings, trivial

if "expecttest" not in sys.modules:
    # PyTorch's base class derives from that of expecttest, which is not locked and not needed here.
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
    sys.modules["expecttest"].ACCEPT = False

from torch.testing._internal import common_distributed  # noqa: E402


class AllReduce(common_distributed.MultiProcContinuousTest):
    """All ranks add up one element, as often as the run has cases."""

    world_size = settings.ranks()

    @classmethod
    def backend_str(cls) -> str:
        return "gloo"


def _case(number: int) -> types.FunctionType:
    def test(self: AllReduce) -> None:
        trivial.all_reduce(number)

    return test


for _number in range(settings.cases()):
    setattr(AllReduce, f"test_{_number:05d}", _case(_number))

if settings.has_loop():
    # Its name is the last in unittest's order.
    AllReduce.test_bare_loop = lambda self: trivial.bare_loop()
