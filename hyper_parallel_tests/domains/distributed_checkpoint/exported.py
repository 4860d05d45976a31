"""Folders of safetensors as somebody reads them who has the plain library and no ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.models.seeding import generator

__all__ = ["DTYPES", "INDEX", "divided", "read_plainly", "whole_model"]

INDEX = "model.safetensors.index.json"
READER = Path(__file__).with_name("plain_reader.py")

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8": torch.float8_e4m3fn,
    "int64": torch.int64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}


def whole_model() -> dict[str, Tensor]:
    """The tensors of a model, whole: even and uneven sizes, one that is empty, two dtypes, two names of one tensor."""
    sizes = {"embedding.weight": (10, 4), "layers.0.weight": (5, 7), "layers.0.bias": (5,), "norm.weight": (3, 2, 3)}
    state = {name: torch.randn(size, generator=generator(0, name)) for name, size in sizes.items()}
    state["layers.1.weight"] = torch.randn(6, 4, generator=generator(1)).to(torch.bfloat16)
    state["none.weight"] = torch.zeros(0, 4)
    state["output.weight"] = state["embedding.weight"]
    return state


def divided(engine: Any, world: Any, state: Mapping[str, Tensor], dims: Mapping[str, int]) -> dict[str, Tensor]:
    """The same, of which some tensors are divided over all ranks along a dimension."""
    mesh = world.mesh(dp=world.size)
    return {
        name: engine.distribute_tensor(one.to(world.device), mesh, [engine.Shard(dims[name])])
        if name in dims
        else one.to(world.device)
        for name, one in state.items()
    }


def read_plainly(folder: Path) -> dict[str, Any]:
    """What index and files of a folder say to a process that has the plain library, and neither torch nor ranks.

    Returns:
        `tensors` by name, `file` of each tensor by name, `index` as it is written, `others`: names of what else is in
        the folder.
    """
    said = subprocess.run([sys.executable, str(READER), str(folder)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert not found.pop("torch"), "the reader has imported torch"
    found["tensors"] = {name: _tensor(*one) for name, one in found["tensors"].items()}
    return found


def _tensor(code: str, shape: list[int], content: str) -> Tensor:
    dtype = DTYPES[CODES[code]]
    raw = bytearray.fromhex(content)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)


CODES = {
    "F32": "float32",
    "F64": "float64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8",
    "I64": "int64",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
