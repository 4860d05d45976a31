"""Models alone, in other dtypes, and saves beside the training."""

from __future__ import annotations

import threading

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.managed import (
    assert_holds,
    empty_state,
    filled_folder,
    holding,
    state_of,
)
from hyper_parallel_tests.harness import assert_equal, contract

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}

# Rounded to float16 first, it ends at 1 in bfloat16; rounded once, at the next number above.
ROUNDED_TWICE = 1 + 2**-8 + 2**-13


def model_state(engine, world):
    """The model's part of a state, with numbers that show how often they were rounded."""
    model = state_of(engine, world, 10)["model"]
    return model | {"rounding": torch.tensor([ROUNDED_TWICE, 1 / 3, -0.0, 65504.0], device=world.device)}


@contract("CK-2-03")
def test_model_alone(engine, world):
    """An export holds the model's tensors and nothing else."""
    with filled_folder(engine, world, 10) as (manager, _):
        model = model_state(engine, world)
        folder = manager.export(10, model)
        keys = set(engine.read_checkpoint_metadata(folder).state_dict_metadata)
        assert keys == set(model)
        loaded = {name: torch.zeros_like(one) for name, one in model.items()}
        engine.load(loaded, checkpoint_id=folder)
    assert_equal(loaded, model)


@contract("CK-2-03")
def test_export_is_no_step(engine, world):
    """An export is neither the latest nor ever deleted, and its folder is verified as a checkpoint is."""
    with filled_folder(engine, world, 10, keep_latest_k=1) as (manager, _):
        folder = manager.export(15, model_state(engine, world))
        assert (manager.latest(), manager.incomplete()) == (10, [])
        assert manager.save(20, state_of(engine, world, 20))
        assert manager.steps() == [20]
        assert set(engine.verify_checkpoint(folder)["files"]) > {".metadata"}


@contract("CK-2-03")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_exported_dtype(engine, world, dtype):
    """Floating-point numbers are rounded once, others are as they are, and the training's own stay."""
    with filled_folder(engine, world) as (manager, _):
        model = model_state(engine, world)
        expected = {name: one.to(dtype) if one.is_floating_point() else one for name, one in model.items()}
        folder = manager.export(10, model, dtype=dtype)
        loaded = {name: torch.zeros_like(one) for name, one in expected.items()}
        engine.load(loaded, checkpoint_id=folder)
        assert_equal(loaded, expected)
        assert_equal(model, model_state(engine, world), what="the training's own")


class Gate:
    """A value whose writing waits until it is let through."""

    opened = threading.Event()

    def __deepcopy__(self, _):
        return self

    def __reduce__(self):
        Gate.opened.wait()
        return int, (1,)


@pytest.fixture
def gate():
    """A closed gate, open in any case when the case is over."""
    Gate.opened.clear()
    yield Gate()
    Gate.opened.set()


@contract("CK-2-03")
def test_asynchronous_save_has_the_values_of_the_call(engine, world, gate):
    """What is written beside the training are the values of the call, and it counts when it is complete."""
    with filled_folder(engine, world, 10, asynchronous=True) as (manager, _):
        state = state_of(engine, world, 20)
        manager.save(20, state | {"gate": gate})
        assert manager.latest() == 10
        for part in (*state["model"].values(), state["optimizer"]["weight"]["moment"]):
            part.zero_()
        state["position"]["step"] = -5
        Gate.opened.set()
        manager.wait()
        assert holding(engine, world, manager) == 20


@contract("CK-2-03")
def test_load_waits_for_the_save(engine, world, gate):
    """A load takes the checkpoint whose save is under way."""
    with filled_folder(engine, world, 10, asynchronous=True) as (manager, _):
        manager.save(20, state_of(engine, world, 20) | {"gate": gate})
        threading.Timer(0.0, Gate.opened.set).start()
        assert holding(engine, world, manager) == 20


@contract("CK-2-03")
def test_close_waits_for_the_save(engine, world, gate):
    """A manager that is closed has ended its save, and the next manager finds it."""
    with filled_folder(engine, world, asynchronous=True) as (manager, folder):
        manager.save(20, state_of(engine, world, 20) | {"gate": gate})
        threading.Timer(0.0, Gate.opened.set).start()
        manager.close()
        with engine.CheckpointManager(folder) as other:
            assert holding(engine, world, other) == 20


@contract("CK-2-03")
def test_next_save_waits_for_the_one_before(engine, world, gate):
    """Two saves in a row are both complete, each with its own values."""
    with filled_folder(engine, world, asynchronous=True) as (manager, _):
        manager.save(10, state_of(engine, world, 10) | {"gate": gate})
        threading.Timer(0.0, Gate.opened.set).start()
        manager.save(20, state_of(engine, world, 20))
        manager.wait()
        assert [holding(engine, world, manager, step) for step in manager.steps()] == [10, 20]


@contract("CK-2-03")
def test_training_communicates_meanwhile(engine, world, gate):
    """The training's collectives between a save and its end are not those of the save."""
    with filled_folder(engine, world, asynchronous=True) as (manager, _):
        manager.save(10, state_of(engine, world, 10) | {"gate": gate})
        total = torch.ones(1, device=world.device)
        torch.distributed.all_reduce(total)
        Gate.opened.set()
        for _ in range(20):
            torch.distributed.all_reduce(total)
        manager.wait()
        state = empty_state(engine, world)
        assert manager.load(state) == 10
        assert_holds(engine, world, state, 10)
    assert_equal(total, torch.full_like(total, float(world.size) ** 21))
