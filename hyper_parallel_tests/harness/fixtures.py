"""What a case may ask for by name: `engine`, `world`, `ledger`, `artifacts`, `steps`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hyper_parallel_tests.harness.marks import MARKERS, steps_of
from hyper_parallel_tests.harness.world import engine_called

if TYPE_CHECKING:
    from hyper_parallel_tests.harness.options import Options
    from hyper_parallel_tests.harness.world import World

_OPTIONS = pytest.StashKey["Options"]()
_WORLD = pytest.StashKey["World"]()
_FOLDER = pytest.StashKey[Path]()
_ENGINE = pytest.StashKey[Any]()


def prepare(config: pytest.Config, options: Options, rank: int, size: int, folder: Path) -> None:
    """Make the marks known and join the ranks, before anything is collected."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_OPTIONS] = options
    config.stash[_FOLDER] = folder
    if options.process_group:
        from hyper_parallel_tests.harness import world

        world.join_process_group(options.device, rank, size)
        config.stash[_WORLD] = world.World(rank, size, world.device_of(options.device), engine_of(config))


def engine_of(config: pytest.Config) -> Any:
    """The engine under test, loaded on first use; None where this target has no engine at all."""
    if _ENGINE not in config.stash:
        config.stash[_ENGINE] = engine_called(config.stash[_OPTIONS].engine)
    return config.stash[_ENGINE]


@pytest.fixture
def engine(pytestconfig: pytest.Config) -> Any:
    """The system under test, behind the port."""
    found = engine_of(pytestconfig)
    if found is None:
        pytest.fail("this target has no engine: give it capabilities = [...] in its BUILD file")
    return found


@pytest.fixture
def world(pytestconfig: pytest.Config) -> World:
    """The ranks that run this case; there is none in layer 0, which is pure logic in one process."""
    if _WORLD not in pytestconfig.stash:
        pytest.fail("a case of layer 0 has no world of ranks: move it to layer 1 or drop the fixture")
    return pytestconfig.stash[_WORLD]


@pytest.fixture
def ledger() -> Any:
    """The tolerances, by configuration name."""
    from hyper_parallel_tests.harness.judging import tolerances

    return tolerances.ledger


@pytest.fixture
def artifacts(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Path:
    """A folder of this case, one for all its ranks, that is kept with the test's outputs."""
    case = request.node.nodeid.partition("::")[2]
    name = re.sub(r"[^\w.\-\[\]]+", "_", f"{request.node.path.stem}.{case}")[:150]
    folder = pytestconfig.stash[_FOLDER] / "artifacts" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def steps(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> int:
    """How many steps this case trains in this run: the mark `steps` says it for each size, `--steps` for all."""
    found = steps_of(request.node, pytestconfig.stash[_OPTIONS])
    if found is None:
        pytest.fail(
            "steps is for a case that says how many: @pytest.mark.steps(200, nightly=2000, weekly=20000, seconds=0.1)"
        )
    return found
