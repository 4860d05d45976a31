"""How a case runs and judges: what test files import.

Everything is loaded on first use, because the conductor imports this package too and must not pay for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyper_parallel_tests.harness import jobs as jobs
    from hyper_parallel_tests.harness.judging import trace as trace
    from hyper_parallel_tests.harness.judging.baseline import train_baseline as train_baseline
    from hyper_parallel_tests.harness.judging.clean import in_clean_process as in_clean_process
    from hyper_parallel_tests.harness.judging.determinism import (
        assert_bitwise_repeatable as assert_bitwise_repeatable,
    )
    from hyper_parallel_tests.harness.judging.parity import assert_close as assert_close
    from hyper_parallel_tests.harness.judging.parity import assert_differs as assert_differs
    from hyper_parallel_tests.harness.judging.parity import assert_equal as assert_equal
    from hyper_parallel_tests.harness.judging.parity import assert_parity as assert_parity
    from hyper_parallel_tests.harness.judging.parity import mean_over_ranks as mean_over_ranks
    from hyper_parallel_tests.harness.judging.parity import train as train
    from hyper_parallel_tests.harness.marks import contract as contract
    from hyper_parallel_tests.harness.world import World as World

_HOMES = {
    "contract": "marks",
    "jobs": "jobs",
    "World": "world",
    "trace": "judging.trace",
    "assert_close": "judging.parity",
    "assert_differs": "judging.parity",
    "assert_equal": "judging.parity",
    "assert_parity": "judging.parity",
    "mean_over_ranks": "judging.parity",
    "train": "judging.parity",
    "train_baseline": "judging.baseline",
    "in_clean_process": "judging.clean",
    "assert_bitwise_repeatable": "judging.determinism",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"hyper_parallel_tests.harness has no {name!r}; it offers {', '.join(__all__)}")
    module = importlib.import_module(f"{__name__}.{home}")
    return module if home.rpartition(".")[2] == name else getattr(module, name)
