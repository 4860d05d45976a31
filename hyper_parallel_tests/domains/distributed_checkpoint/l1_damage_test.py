"""Checkpoints whose files are damaged, mixed up, or made by strangers: an error, and nothing of them is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.damage import DAMAGES, HOSTILE, MARK, Damage, RunsCode
from hyper_parallel_tests.domains.distributed_checkpoint.managed import (
    assert_holds,
    empty_state,
    on_rank_0,
    state_of,
)
from hyper_parallel_tests.domains.distributed_checkpoint.setting import shared_folder
from hyper_parallel_tests.domains.distributed_checkpoint.ways import WAYS, Managed, Plain, each_way
from hyper_parallel_tests.harness import contract

Way = Callable[[Any, Path], Plain | Managed]

ALL = DAMAGES | HOSTILE

# Of no consequence where no manifest says what the files are: all numbers are the checkpoint's.
HARMLESS = {"longer_shard", "metadata_of_another_step", "linked_shard"}
BOTH = [(way, name) for way in WAYS for name in ALL if way == "manager" or name not in HARMLESS]

VISIBLE = DAMAGES | {"linked_shard": HOSTILE["linked_shard"]}

each_visible_damage = pytest.mark.parametrize("damage", VISIBLE.values(), ids=VISIBLE)
each_damage_each_way = pytest.mark.parametrize(
    ("way", "damage"), [(WAYS[way], ALL[name]) for way, name in BOTH], ids=["-".join(both) for both in BOTH]
)


def marked(engine: Any, world: Any, step: int) -> dict[str, Any]:
    """The state of a step, in which the last rank has the marked number."""
    state = state_of(engine, world, step)
    if world.rank == world.size - 1:
        state["model"]["weight"].to_local()[-1, -1] = MARK
    return state


@contextmanager
def two_checkpoints(engine: Any, world: Any, way: Way) -> Iterator[tuple[Plain | Managed, Path]]:
    """Context with steps 10 and 20 saved in a way, and their folder."""
    with shared_folder(world) as folder:
        chosen = way(engine, folder)
        try:
            chosen.save(10, state_of(engine, world, 10))
            chosen.save(20, marked(engine, world, 20))
            yield chosen, folder
        finally:
            chosen.close()


def harm(world: Any, chosen: Plain | Managed, damage: Damage) -> None:
    on_rank_0(world, damage.do, chosen.path(20), chosen.path(10))


def refusal(chosen: Plain | Managed, step: int, state: dict[str, Any]) -> str:
    """What a load says that must fail."""
    try:
        chosen.load(step, state)
    except chosen.error as error:
        return str(error)
    return "it was loaded without an error"


@contract("CK-1-03")
@each_damage_each_way
def test_error_names_it(engine, world, way, damage):
    """A load of it is an error on every rank that names the file, or what is wrong in it."""
    with two_checkpoints(engine, world, way) as (chosen, _):
        harm(world, chosen, damage)
        said = refusal(chosen, 20, empty_state(engine, world))
        assert re.search(damage.names, said.replace("without an error", "")), said


@contract("CK-1-03")
@each_damage_each_way
def test_nothing_of_it_is_loaded(engine, world, way, damage):
    """What was to be loaded is as it was, on every rank."""
    with two_checkpoints(engine, world, way) as (chosen, _):
        harm(world, chosen, damage)
        state = empty_state(engine, world)
        refusal(chosen, 20, state)
        assert_holds(engine, world, state, -1)


@contract("CK-1-03")
@each_damage_each_way
def test_the_one_before_still_loads(engine, world, way, damage):
    """After the error, the checkpoint before it loads into the same state."""
    with two_checkpoints(engine, world, way) as (chosen, _):
        harm(world, chosen, damage)
        state = empty_state(engine, world)
        refusal(chosen, 20, state)
        chosen.load(10, state)
        assert_holds(engine, world, state, 10)


@contract("CK-1-03")
@each_way
def test_no_code_of_metadata_is_run(engine, world, way):
    """Metadata that are a pickle of something else are not unpickled."""
    with two_checkpoints(engine, world, way) as (chosen, folder):
        harm(world, chosen, HOSTILE["code_in_metadata"])
        refusal(chosen, 20, empty_state(engine, world))
        assert not (folder / "code was run").exists()


@contract("CK-1-03")
@each_way
def test_no_code_of_a_value_is_run(engine, world, way):
    """A value that would run code when it is unpickled is an error that names its key, and is not unpickled."""
    with shared_folder(world) as folder:
        chosen = way(engine, folder)
        chosen.save(10, {"weight": torch.ones(2), "value": RunsCode(folder / "code was run")})
        said = refusal(chosen, 10, {"weight": torch.zeros(2), "value": None})
        chosen.close()
        assert not (folder / "code was run").exists()
        assert "value" in said


BITS = {"first": 0.0, "early": 0.2, "middle": 0.5, "late": 0.8, "last": 1.0}


@contract("CK-1-03")
@pytest.mark.parametrize("place", BITS.values(), ids=BITS)
@pytest.mark.parametrize("name", [".metadata", "manifest.json", "__0_0.distcp"])
def test_any_flipped_bit_is_found(engine, world, name, place):
    """One flipped bit in any file of a manager's checkpoint, wherever, is an error that names it or what it says."""
    with two_checkpoints(engine, world, Managed) as (chosen, _):
        on_rank_0(world, flip, chosen.path(20) / name, place)
        said = refusal(chosen, 20, empty_state(engine, world))
        assert re.search("/step-20/" if name == "manifest.json" else re.escape(name), said), said


def flip(file: Path, place: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x04
    file.write_bytes(content)


@contract("CK-1-03")
@pytest.mark.parametrize("name", ["../elsewhere", "/etc/hostname", "a/b", "..", ""])
def test_names_in_the_manifest(engine, world, name):
    """A manifest that names what is no file of its folder is an error that has the name."""
    with two_checkpoints(engine, world, Managed) as (chosen, _):
        on_rank_0(world, rename_in_manifest, chosen.path(20) / "manifest.json", name)
        assert re.search(re.escape(repr(name)), refusal(chosen, 20, empty_state(engine, world)))


def rename_in_manifest(manifest: Path, name: str) -> None:
    content = manifest.read_text()
    manifest.write_text(content.replace('"__0_0.distcp"', f'"{name}"'))


@contract("CK-1-03")
def test_newer_manifest(engine, world):
    """A manifest of a newer version is an error that has both versions, and nothing else of it is believed."""
    with two_checkpoints(engine, world, Managed) as (chosen, _):
        manifest = chosen.path(20) / "manifest.json"
        on_rank_0(world, lambda: manifest.write_text('{"format": 2, "shards": []}'))
        assert re.search(r"version 2, .* version 1", refusal(chosen, 20, empty_state(engine, world)))


@contract("CK-1-03")
def test_step_under_the_name_of_another(engine, world):
    """A checkpoint that was moved under the name of another step is an error that has both."""
    with two_checkpoints(engine, world, Managed) as (chosen, _):
        on_rank_0(world, lambda: chosen.path(20).rename(chosen.path(30)))
        assert re.search("step 20, expected step 30", refusal(chosen, 30, empty_state(engine, world)))


@contract("CK-1-03")
@each_visible_damage
def test_one_process_alone_sees_it(engine, world, damage):
    """Verification by one process tells of the damage too, where nobody has made the manifest fit to it."""
    with two_checkpoints(engine, world, Managed) as (chosen, _):
        assert engine.verify_checkpoint(chosen.path(10))["step"] == 10
        harm(world, chosen, damage)
        with pytest.raises(engine.CheckpointError, match=damage.names):
            engine.verify_checkpoint(chosen.path(20))


@contract("CK-1-03")
def test_second_writer(engine, world):
    """A manager that saves into the folder of another one is told so, and neither harms the other's checkpoints."""
    with two_checkpoints(engine, world, Managed) as (chosen, folder):
        other = Managed(engine, folder)
        with pytest.raises(engine.CheckpointError, match="another manager"):
            other.save(30, state_of(engine, world, 30))
        chosen.save(40, state_of(engine, world, 40))
        chosen.close()
        other.save(50, state_of(engine, world, 50))
        assert other.manager.steps() == [10, 20, 40, 50]
        other.close()
