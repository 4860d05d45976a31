"""Refers to its operators by name only."""

import importlib

from ..mesh import Mesh


def shard(mesh: Mesh, operator: str):
    return importlib.import_module("made_up.core.shard.ops." + operator)
