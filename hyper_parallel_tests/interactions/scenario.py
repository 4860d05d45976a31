"""The registry's entry of a scenario, which its case takes mesh and cards from."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyper_parallel_tests.harness import World

__all__ = ["Scenario", "scenario"]

_REGISTRY = Path(__file__).with_name("registry.toml")


@dataclass(frozen=True)
class Scenario:
    """What an entry says of how to run it.

    Attributes:
        id: the contract, e.g. IX-07.
        cards: ranks.
        dims: name -> size of each mesh dimension, outermost first.
    """

    id: str
    cards: int
    dims: dict[str, int]

    def mesh(self, world: World) -> Any:
        """The engine's mesh over all ranks.

        Raises:
            ValueError: the world has not as many ranks as the scenario asks for.
        """
        if world.size != self.cards:
            raise ValueError(f"{self.id} is a scenario of {self.cards} cards, and this run has {world.size}")
        return world.mesh(**self.dims)


def scenario(id: str) -> Scenario:
    """The entry of the scenario `id`.

    Raises:
        KeyError: there is none; the message lists those that there are.
    """
    entries = {one["id"]: one for one in tomllib.loads(_REGISTRY.read_text(encoding="utf-8"))["scenario"]}
    if id not in entries:
        raise KeyError(f"{id} is not in registry.toml, which has {', '.join(entries)}")
    return Scenario(id, entries[id]["cards"], entries[id]["mesh"])
