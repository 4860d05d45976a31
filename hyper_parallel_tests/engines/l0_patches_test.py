"""Engines and baselines: what a package says of torch is so, and no engine comes to a baseline."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from typing import Any

import pytest
import torch

from hyper_parallel_tests.engines import load
from hyper_parallel_tests.harness import in_clean_process
from hyper_parallel_tests.harness.loading import TORCH_OF_ENGINES


def parts_of_torch() -> dict[str, Any]:
    """Every function and class of torch's loaded modules, and every member of those classes, by name."""
    parts: dict[str, Any] = {}
    for module in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        for name, value in vars(sys.modules[module]).items():
            if callable(value):
                parts[f"{module}.{name}"] = value
            # Not isinstance: it asks what torch has deprecated.
            if issubclass(type(value), type) and value.__module__ == module:
                parts |= {f"{module}.{name}.{member}": one for member, one in vars(value).items() if callable(one)}
    return parts


def changed_by_import(engine: str) -> list[str]:
    """Names of the parts of torch that are others once all capabilities of an engine are imported."""
    for name in TORCH_OF_ENGINES:
        importlib.import_module(name)
    before = parts_of_torch()
    for capability in load(engine).capabilities:
        importlib.import_module(f"hyper_parallel_tests.engines.{engine}.{capability}")
    after = parts_of_torch()
    return sorted(name for name, part in before.items() if after.get(name) is not part)


@pytest.mark.watchdog(120)
def test_engine_tells_whether_it_patches_torch(engine):
    """In a process of its own the import of all capabilities changes torch if the package says so, and only then."""
    declared = importlib.import_module(f"hyper_parallel_tests.engines.{engine.name}").PATCHES_TORCH
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        changed = pool.apply(changed_by_import, (engine.name,))
    if declared:
        assert changed, f"{engine.name} says PATCHES_TORCH = True and changes nothing: baselines need no other process"
    else:
        assert changed == [], f"{engine.name} says PATCHES_TORCH = False"


def hook_of_modules() -> str:
    """Where the class comes from that backward hooks of modules run through."""
    return torch.nn.modules.module.BackwardHook.__module__


def test_baseline_has_torch_as_it_is(engine):
    """With all capabilities imported here, a baseline's backward hooks are PyTorch's own."""
    for capability in engine.capabilities:
        importlib.import_module(f"hyper_parallel_tests.engines.{engine.name}.{capability}")
    assert in_clean_process(hook_of_modules) == "torch.utils.hooks"


def test_engine_does_not_travel(engine):
    """A baseline gets no engine, in whatever its arguments are."""
    with pytest.raises(TypeError, match="a baseline runs without the engine"):
        in_clean_process(len, [engine])
