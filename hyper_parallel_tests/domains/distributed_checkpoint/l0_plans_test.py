"""Who writes and who reads which part, in worlds of several ranks seen from one process."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.plans import Placed, assert_journey, numbered, plan_save
from hyper_parallel_tests.harness import contract


@contract("CK-0-01")
@pytest.mark.parametrize(
    "journey",
    [
        pytest.param(((4,), (2,), [((8, 4), (0,), (0,))]), id="fewer_ranks"),
        pytest.param(((2,), (4,), [((8, 4), (0,), (0,))]), id="more_ranks"),
        pytest.param(((4,), (4,), [((8, 4), (0,), (1,))]), id="other_dimension"),
        pytest.param(((4,), (2, 2), [((8, 4), (0,), (0, 1))]), id="one_to_two_dimensions"),
        pytest.param(((2, 2), (4,), [((8, 4), (0, 0), (0,))]), id="twice_divided"),
        pytest.param(((2, 2), (2,), [((8, 4), (None, 0), (None,))]), id="replicas"),
        pytest.param(((4,), (2,), [((8, 4), None, None)]), id="plain"),
        pytest.param(((4,), (2,), [((8, 4), None, (1,))]), id="plain_to_divided"),
    ],
)
def test_even_journeys(engine, journey):
    """Where all parts are alike, each element is written once and read once by each rank that wants it."""
    assert_journey(engine, *journey)


@contract("CK-0-01")
@pytest.mark.parametrize(
    "journey",
    [
        pytest.param(((4,), (3,), [((7, 2), (0,), (0,))]), id="uneven"),
        pytest.param(((4,), (3,), [((2, 5), (0,), (1,))]), id="empty_parts"),
        pytest.param(((2, 3), (3, 2), [((5, 7), (0, 1), (1, 0))]), id="two_uneven_dimensions"),
        pytest.param(((3, 2), (4,), [((7,), (0, 0), (0,))]), id="uneven_twice_divided"),
        pytest.param(((4,), (2,), [((0, 3), (0,), (1,))]), id="no_rows"),
    ],
)
def test_uneven_journeys(engine, journey):
    """The last parts are shorter or empty, and still each element is written once and read once."""
    assert_journey(engine, *journey)


@contract("CK-0-01")
@pytest.mark.parametrize(
    ("dims", "copies"),
    [
        pytest.param(None, 6, id="plain"),
        pytest.param((None, None), 6, id="replicated"),
        pytest.param((None, 0), 2, id="rows_in_two_replicas"),
        pytest.param((0, None), 3, id="rows_in_three_replicas"),
    ],
)
def test_replicas_are_written_once(engine, dims, copies):
    """Of ranks that hold the same part exactly one writes it."""
    written = plan_save(engine, (2, 3), {"t": Placed(numbered(6, 2), dims)})
    assert sum(map(len, written.writes)) == 6 // copies


@contract("CK-0-01")
def test_replicas_are_shared_out(engine):
    """Equal tensors that every rank has are written by all ranks, equally many each."""
    written = plan_save(engine, (4,), {f"t{index}": Placed(numbered(4, 4), (None,)) for index in range(8)})
    assert [len(writes) for writes in written.writes] == [2, 2, 2, 2]


@contract("CK-0-01")
def test_objects_are_written_once(engine):
    """What is no tensor is written by one rank, and what one rank alone has by that rank."""

    def add(rank, state):
        state |= {"step": 3, "name": "a", f"only.{rank}": rank}

    written = plan_save(engine, (4,), {"t": Placed(numbered(4, 4), (0,))}, change=add)
    writers = {write.key: rank for rank, writes in enumerate(written.writes) for write in writes if write.key != "t"}
    times = Counter(write.key for writes in written.writes for write in writes if write.key != "t")
    assert times == dict.fromkeys(["step", "name", "only.0", "only.1", "only.2", "only.3"], 1)
    assert [writers[f"only.{rank}"] for rank in range(4)] == [0, 1, 2, 3]


@contract("CK-0-01")
def test_missing_part_is_an_error(engine):
    """A key of which no rank gives some part cannot be saved, and the error names it."""

    def forget(rank, state):
        if rank == 2:
            del state["divided"]

    placed = {"divided": Placed(numbered(8, 2), (0,)), "other": Placed(numbered(8, 2), (0,))}
    with pytest.raises(Exception, match="divided"):
        plan_save(engine, (4,), placed, change=forget)


@contract("CK-0-01")
def test_two_dtypes_of_one_tensor_are_an_error(engine):
    """Ranks that have parts of different dtypes under one key cannot save it, and the error names it."""

    def convert(rank, state):
        if rank == 1:
            state["divided"] = state["divided"].to(torch.bfloat16)

    with pytest.raises(Exception, match="divided"):
        plan_save(engine, (2,), {"divided": Placed(numbered(4, 2), (0,))}, change=convert)


@contract("CK-0-01")
def test_terms_are_not_saved_as_the_whole(engine):
    """A tensor whose ranks hold terms of a sum is refused: no rank has what it stands for."""

    def give_terms(rank, state):
        mesh = engine.init_device_mesh("cpu", (2,), mesh_dim_names=("a",))
        state["terms"] = engine.from_local(numbered(2, 2), mesh, [engine.Partial("sum")])

    with pytest.raises(Exception, match="(?i)partial"):
        plan_save(engine, (2,), {}, change=give_terms)
