"""What a run tells its cases: through the environment, which every contender hands on to its ranks."""

from __future__ import annotations

import os

RECORD = "HYPER_PARALLEL_TESTS_BENCH_RECORD"
RANKS = "HYPER_PARALLEL_TESTS_BENCH_RANKS"
CASES = "HYPER_PARALLEL_TESTS_BENCH_CASES"
FRESH_RANKS = "HYPER_PARALLEL_TESTS_BENCH_FRESH_RANKS"

LOOP = -1
"""The number of the bare loop in the record."""


def record() -> str:
    """The file that cases write their times to."""
    return os.environ[RECORD]


def ranks() -> int:
    """How many ranks this run has."""
    return int(os.environ[RANKS])


def cases() -> int:
    """How many cases this run has."""
    return int(os.environ[CASES])


def has_loop() -> bool:
    """Whether the bare loop follows the cases: where several run on the same ranks."""
    return cases() > 1 and not fresh_ranks()


def fresh_ranks() -> bool:
    """Whether each case is to get ranks of its own, from a launcher that stays."""
    return os.environ[FRESH_RANKS] == "1"
