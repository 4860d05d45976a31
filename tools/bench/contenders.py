"""Who is compared: three ways to run one case on several ranks, each as one command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]
_CASES = Path("tools", "bench", "cases")


class Contender(Protocol):
    """One way to run the trivial case of `tools.bench.cases`.

    Attributes:
        name: for tables and pictures.
        keeps_ranks: whether one command runs many cases on the same ranks; else a command runs one case.
    """

    name: str
    keeps_ranks: bool

    def command(self, ranks: int) -> list[str]:
        """The command line, run in ROOT; the number of cases is in the environment."""


class Net:
    """This net, as the test rule starts it."""

    name = "hyper_parallel_tests"
    keeps_ranks = True

    def __init__(self, *flags: str) -> None:
        self._flags = flags

    def command(self, ranks: int) -> list[str]:
        return [
            *_python("hyper_parallel_tests.harness.launch"),
            f"--cards={ranks}",
            "--layer=l1",
            *self._flags,
            str(_CASES / "in_lockstep.py"),
        ]


class TorchrunPytest:
    """`torchrun -m pytest`, once for each case."""

    name = "torchrun -m pytest"
    keeps_ranks = False

    def command(self, ranks: int) -> list[str]:
        # Loopback and a free port, as the net has it: a host's name that does not resolve must not decide.
        launcher = [
            *_python("torch.distributed.run"),
            "--nnodes=1",
            f"--nproc-per-node={ranks}",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
            "--local-addr=127.0.0.1",
            "--max-restarts=0",
        ]
        pytest = ["-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={ROOT}", "-p", "no:cacheprovider"]
        return [*launcher, *pytest, f"{_CASES / 'under_torchrun.py'}::test_all_reduce"]


class Continuous:
    """PyTorch's MultiProcContinuousTest under plain unittest, the quickest of its runners."""

    name = "MultiProcContinuousTest"
    keeps_ranks = True

    def command(self, ranks: int) -> list[str]:
        return [*_python("unittest"), "-q", "tools.bench.cases.continuous"]


NET = Net.name
TORCHRUN = TorchrunPytest.name
ALL: dict[str, Contender] = {"net": Net(), "torchrun": TorchrunPytest(), "continuous": Continuous()}


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", module]
