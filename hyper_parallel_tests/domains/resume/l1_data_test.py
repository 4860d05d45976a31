"""The place in the data: which rows a loader gives that goes on where another one stood."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from hyper_parallel_tests.harness import assert_equal, contract
from hyper_parallel_tests.harness.properties import PROFILE

ROWS = 11


class Numbers(Dataset):
    """Its rows are their numbers."""

    def __init__(self, rows: int = ROWS) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> int:
        return row


def loaders(engine: Any, ranks: int = 1, batch: int = 2, rows: int = ROWS, **options: Any) -> list[Any]:
    """One a rank."""
    return [engine.StatefulDataLoader(Numbers(rows), batch, rank=rank, size=ranks, **options) for rank in range(ranks)]


def taken(those: list[Any], batches: int) -> list[int]:
    """Rows of so many batches of all ranks, in order."""
    return [row for _ in range(batches) for one in those for row in one.next_batch().tolist()]


def restored(those: list[Any], state: dict[str, Any]) -> list[Any]:
    for one in those:
        one.load_state_dict(state)
    return those


@contract("RS-1-01")
@PROFILE
@given(
    rows=st.integers(1, 13),
    batch=st.integers(1, 3),
    ranks=st.integers(1, 4),
    before=st.integers(0, 9),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
)
@example(rows=11, batch=2, ranks=2, before=3, seed=0, shuffle=True)
@example(rows=8, batch=2, ranks=2, before=2, seed=0, shuffle=True)
def test_goes_on(engine, rows, batch, ranks, before, seed, shuffle):
    """At whatever batch it was saved, a loader of another seed goes on with the same rows, into the next epoch."""
    first = loaders(engine, ranks, batch, rows, seed=seed, shuffle=shuffle)
    taken(first, before)
    state = first[0].state_dict()
    expected = taken(first, 6)
    fresh = restored(loaders(engine, ranks, batch, rows, seed=9, shuffle=not shuffle), state)
    assert taken(fresh, 6) == expected


@contract("RS-1-01")
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 2])
def test_goes_on_with_other_ranks(engine, ranks, batch):
    """On another number of ranks, or with other batches, the rest of the epoch is the same rows in the same order."""
    first = loaders(engine, 2, 2, 16)
    taken(first, 2)
    state = first[0].state_dict()
    expected = taken(first, 2)
    assert taken(restored(loaders(engine, ranks, batch, 16), state), 8 // (ranks * batch)) == expected


@contract("RS-1-01")
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_epoch_is_every_row(engine, ranks):
    """An epoch in two runs has every row, and again only those that fill the last batches."""
    those = loaders(engine, ranks)
    batches = -(-ROWS // (2 * ranks))
    rows = taken(those, 1)
    rows += taken(restored(loaders(engine, ranks), those[0].state_dict()), batches - 1)
    assert sorted(set(rows)) == list(range(ROWS))
    assert rows[ROWS:] == rows[: batches * 2 * ranks - ROWS]


@contract("RS-1-01")
def test_drop_last(engine):
    """With uneven ends dropped, an epoch is whole batches, each row once at most, before and behind a restore."""
    those = loaders(engine, 2, drop_last=True)
    rows = taken(those, 1)
    fresh = restored(loaders(engine, 2, drop_last=True), those[0].state_dict())
    rows += taken(fresh, 1)
    assert len(set(rows)) == 8
    assert (fresh[0].epoch, fresh[0].position) == (1, 0)


@contract("RS-1-01")
def test_epochs_differ(engine):
    """Each epoch and each seed has an order of its own; without shuffling all have that of the data."""
    one = loaders(engine, batch=ROWS)[0]
    first, second = one.next_batch().tolist(), one.next_batch().tolist()
    other = loaders(engine, batch=ROWS, seed=1)[0].next_batch().tolist()
    assert len({tuple(first), tuple(second), tuple(other)}) == 3
    plain = loaders(engine, batch=ROWS, shuffle=False)[0]
    assert [plain.next_batch().tolist() for _ in range(2)] == [list(range(ROWS))] * 2


@contract("RS-1-01")
def test_iteration_is_the_rest_of_an_epoch(engine):
    """A loop over a restored loader has what is left of the epoch, the next loop the whole of the next one."""
    those = loaders(engine)
    taken(those, 4)
    fresh = restored(loaders(engine), those[0].state_dict())[0]
    assert [len(list(fresh)) for _ in range(2)] == [2, 6]


@contract("RS-1-01")
def test_next_rows_moves_nothing(engine):
    """Asked twice, a loader tells the same rows, which are then those of the batch."""
    one = loaders(engine)[0]
    told = [one.next_rows() for _ in range(2)]
    assert [*told, one.next_batch().tolist()] == [told[0]] * 3


@contract("RS-1-01")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": ROWS + 1}, f"{ROWS + 1} rows, and there are {ROWS}"),
        ({"position": ROWS}, f"position {ROWS}"),
        ({"position": -1}, "position -1"),
        ({"epoch": -1}, "epoch -1"),
        ({"seed": None}, "lacks seed"),
    ],
    ids=["other_data", "behind_the_end", "negative_position", "negative_epoch", "no_seed"],
)
def test_refused(engine, change, words):
    """State that cannot be is refused, and the loader goes on as it would have."""
    those = loaders(engine)
    taken(those, 2)
    before = those[0].state_dict()
    state = {key: value for key, value in (before | change).items() if value is not None}
    with pytest.raises(ValueError, match=words):
        those[0].load_state_dict(state)
    assert those[0].state_dict() == before


@contract("RS-1-01")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 1, "rank": 2, "size": 2}, "rank 2 is none of 2"),
        ({"batch_size": 4, "size": 3, "drop_last": True}, f"{ROWS} rows fill no batch of 4"),
    ],
    ids=["no_rows", "no_such_rank", "too_few_rows"],
)
def test_no_loader(engine, options, words):
    """Loaders that could give no batch are not made."""
    with pytest.raises(ValueError, match=words):
        engine.StatefulDataLoader(Numbers(), **options)


@contract("RS-1-01")
def test_state_is_a_copy(engine):
    """A state that was taken stays as it is while its loader goes on."""
    one = loaders(engine)[0]
    state = one.state_dict()
    kept = dict(state)
    one.next_batch()
    assert state == kept
    fresh = restored(loaders(engine, seed=5), state)[0]
    assert_equal(fresh.next_batch(), torch.tensor(loaders(engine)[0].next_rows()), what="rows")
