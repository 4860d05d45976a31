"""Saves beside the program, on two ranks: what is in them, and how their ends are told."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.domains.distributed_checkpoint.networks import (
    WRAPS,
    network,
    restore,
    states,
    step,
    tensors,
    trained,
)
from hyper_parallel_tests.domains.distributed_checkpoint.setting import shared_folder
from hyper_parallel_tests.harness import assert_equal, contract

each_wrap = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)

# Long enough that a save which does not wait would have begun, and no more than that is lost if it does.
BEGUN_S = 0.3


class Held:
    """An object that is written no sooner than somebody releases it, and is a text then."""

    def __init__(self):
        self._released = threading.Event()

    def release(self):
        self._released.set()

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        self._released.wait()
        return str, ("written",)


class Unwritable:
    """An object that cannot be written."""

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise OSError("no space for it")


class Asked:
    """An object with a state, which calls a function when it is asked for it."""

    def __init__(self, asked):
        self._asked = asked

    def state_dict(self):
        self._asked()
        return {"value": 1}

    def load_state_dict(self, state):
        self.state = state


@contextmanager
def held_save(engine, folder, state, rank):
    """Context in which a save is under way, for as long as one rank's object is held; gives it and its release."""
    held = Held()
    alone = {f"held.{dist.get_rank()}": held if dist.get_rank() == rank else "not held"}
    response = engine.async_save(state | alone, checkpoint_id=folder)
    try:
        yield response, held.release
    finally:
        held.release()


@contract("CK-1-02")
@pytest.mark.parametrize("holder", [0, 1])
def test_program_goes_on(engine, world, holder):
    """The call returns while a rank still writes; no rank is done before all are, and then all have the metadata."""
    with shared_folder(world) as folder:
        with held_save(engine, folder, {"t": torch.ones(3)}, holder) as (response, release):
            assert not response.done()
            with pytest.raises(TimeoutError):
                response.get_result(timeout=0)
            dist.barrier()
            release()
            metadata = response.get_result()
        assert response.done()
        assert "t" in metadata.state_dict_metadata
        assert set(engine.read_checkpoint_metadata(folder).state_dict_metadata) == set(metadata.state_dict_metadata)


@contract("CK-1-02")
def test_collectives_go_on(engine, world):
    """The program's collectives are answered while a save is under way."""
    with shared_folder(world) as folder, held_save(engine, folder, {"t": torch.ones(3)}, 1) as (response, release):
        for turn in range(20):
            total = torch.tensor(turn + world.rank)
            dist.all_reduce(total)
            assert total == 2 * turn + 1
        release()
        response.get_result()


def add_in_place(values):
    values["t"].add_(1)


def write_through_a_view(values):
    values["t"].view(-1)[:2] = 9


def replace(values):
    values["t"] = torch.zeros(2, 3)


def change_a_list(values):
    values["inner"]["list"].append(3)


def change_in_a_list(values):
    values["inner"]["deep"][1]["a"] = 9


def change_a_number(values):
    values["inner"]["step"] += 1


def change_an_object(values):
    values["object"].values.append(4)


class Plain:
    """An object that has a list."""

    def __init__(self, values):
        self.values = values

    def __eq__(self, other):
        return isinstance(other, Plain) and self.values == other.values


def some_values():
    return {
        "t": torch.arange(6.0).view(2, 3),
        "inner": {"list": [1, 2], "deep": [1, {"a": 2}], "step": 5},
        "object": Plain([1, 2]),
    }


CHANGES = [
    add_in_place,
    write_through_a_view,
    replace,
    change_a_list,
    change_in_a_list,
    change_a_number,
    change_an_object,
]


@contract("CK-1-02")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_later_changes_stay_out(engine, world, change):
    """What is changed after the call is not in the checkpoint, whatever it is and however it is changed."""
    with shared_folder(world) as folder:
        values = some_values()
        with held_save(engine, folder, values, 1) as (response, release):
            change(values)
            release()
            response.get_result()
        inner = {"list": None, "deep": [None, {"a": None}], "step": None}
        state = {"t": torch.zeros(2, 3), "inner": inner, "object": None}
        engine.load(state, checkpoint_id=folder)
    expected = some_values()
    assert_equal(state.pop("t"), expected.pop("t"))
    assert state == expected


@contract("CK-1-02")
@each_wrap
def test_later_steps_stay_out(engine, world, wrap):
    """Parameters and optimizer state are those at the call, however many steps are taken before they are written."""
    with shared_folder(world) as folder:
        model, optimizer = trained(engine, world, network, wrap, seed=0, steps=1)
        at_the_call = tensors(model)
        with held_save(engine, folder, states(engine, model, optimizer), 1) as (response, release):
            losses = [step(world, model, optimizer, seed) for seed in (1, 2)]
            release()
            response.get_result()
        again, its_optimizer = trained(engine, world, network, wrap, seed=1, steps=1)
        restore(engine, folder, again, its_optimizer)
    assert_equal(tensors(again), at_the_call)
    assert_equal([step(world, again, its_optimizer, seed) for seed in (1, 2)], losses, what="losses")


@contract("CK-1-02")
def test_state_is_asked_for_in_the_call(engine, world):
    """An object with a state is asked for it once, in the call, by the program's own thread."""
    threads = []
    with shared_folder(world) as folder:
        state = {"one": Asked(lambda: threads.append(threading.current_thread()))}
        with held_save(engine, folder, state, 1) as (response, release):
            assert threads == [threading.current_thread()]
            release()
            response.get_result()
    assert len(threads) == 1


@contract("CK-1-02")
@pytest.mark.parametrize("where", [0, 1])
def test_failure_is_told_at_the_wait(engine, world, where):
    """A rank that cannot write fails no call; all ranks learn it when they wait, each time, and it is no checkpoint."""
    with shared_folder(world) as folder:
        mine = Unwritable() if world.rank == where else "can be written"
        response = engine.async_save({"t": torch.ones(3), f"only.{world.rank}": mine}, checkpoint_id=folder)
        for _ in range(2):
            with pytest.raises(engine.CheckpointException, match="no space for it"):
                response.get_result()
        assert response.done()
        with pytest.raises(FileNotFoundError):
            engine.read_checkpoint_metadata(folder)


@contract("CK-1-02")
@pytest.mark.parametrize("second", ["async_save", "save"])
def test_save_after_a_failed_one(engine, world, second):
    """A failed save that nobody has waited for fails no other one, and still tells of its failure."""
    with shared_folder(world) as folder:
        mine = Unwritable() if world.rank == 1 else "can be written"
        failed = engine.async_save({f"only.{world.rank}": mine}, checkpoint_id=folder / "first")
        result = getattr(engine, second)({"t": torch.ones(3)}, checkpoint_id=folder / "second")
        if second == "async_save":
            result.get_result()
        state = {"t": torch.zeros(3)}
        engine.load(state, checkpoint_id=folder / "second")
        with pytest.raises(engine.CheckpointException, match="no space for it"):
            failed.get_result()
    assert_equal(state["t"], torch.ones(3))


@contract("CK-1-02")
@pytest.mark.parametrize("second", ["async_save", "save"])
def test_second_save_waits(engine, world, second):
    """A save that is called while one is under way looks at its state dict when that one is done."""
    with shared_folder(world) as folder:
        values = torch.ones(3)
        seen, begun = [], threading.Event()
        with (
            held_save(engine, folder / "first", {"t": values}, 1) as (first, release),
            ThreadPoolExecutor(1) as pool,
        ):

            def asked():
                seen.append(first.done())
                begun.set()

            def release_a_little_later():
                begun.wait(BEGUN_S)
                release()

            pool.submit(release_a_little_later)
            values.add_(1)
            state = {"t": values, "asked": Asked(asked)}
            result = getattr(engine, second)(state, checkpoint_id=folder / "second")
            if second == "async_save":
                result.get_result()
            assert seen == [True]
        loaded = {name: {"t": torch.zeros(3)} for name in ("first", "second")}
        for name, state in loaded.items():
            engine.load(state, checkpoint_id=folder / name)
    assert_equal(loaded["first"]["t"], torch.ones(3))
    assert_equal(loaded["second"]["t"], torch.full((3,), 2.0))
