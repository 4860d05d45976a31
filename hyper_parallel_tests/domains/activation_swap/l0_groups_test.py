"""Which tensors may be swapped, which layers go together, and when their copies start and are awaited."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

PARAMETER = nn.Parameter(torch.ones(4, 4))
LARGE = torch.ones(4, 4)
TENSORS = {
    "plain": (LARGE, True),
    "view": (LARGE[1:, ::2], True),
    "graph": (LARGE.clone().requires_grad_() * 2, True),
    "half": (LARGE.bfloat16(), True),
    "integers": (torch.arange(3), True),
    "mask": (LARGE > 0, True),
    "scalar": (torch.tensor(1.0), True),
    "expanded": (torch.ones(1).expand(8), True),
    "parameter": (PARAMETER, False),
    "transposed_parameter": (PARAMETER.t(), False),
    "part_of_a_parameter": (PARAMETER[1:], False),
    "view_of_a_view": (PARAMETER.t()[1:].t(), False),
    "copy_of_a_parameter": (PARAMETER.clone(), True),
    "empty": (torch.empty(0, 4), False),
    "sparse": (torch.eye(4).to_sparse(), False),
    "without_memory": (torch.empty(4, 4, device="meta"), False),
}

layers = st.lists(st.integers(0, 40), max_size=12).map(lambda sizes: {f"layer {i}": n for i, n in enumerate(sizes)})


@contract("SW-0-01")
@pytest.mark.parametrize(("tensor", "expected"), TENSORS.values(), ids=TENSORS)
def test_which_tensors_may_be_swapped(engine, tensor, expected):
    """Parameters, views of them, and tensors without memory stay; whatever else was computed may be swapped."""
    assert engine.base_check_fn(tensor) is expected


@contract("SW-0-01")
@pytest.mark.parametrize(
    ("tensor", "expected"),
    # A view keeps all of its storage on the device, so that is what counts.
    [(LARGE, True), (LARGE[0], True), (torch.ones(15), False), (PARAMETER, False)],
    ids=["large", "view_of_large", "small", "parameter"],
)
def test_small_tensors_stay(engine, tensor, expected):
    """Of a least size, storages of that size may be swapped and smaller ones not."""
    assert engine.base_check_fn(tensor, min_bytes=LARGE.nbytes) is expected


@contract("SW-0-01")
def test_other_dtypes_stay(engine):
    """Where dtypes are named, no others are swapped."""
    tensors = [LARGE, LARGE.bfloat16(), torch.arange(3), LARGE > 0]
    found = [engine.base_check_fn(one, dtypes=frozenset({torch.float32, torch.bfloat16})) for one in tensors]
    assert found == [True, True, False, False]


@contract("SW-0-01")
@pytest.mark.parametrize(
    ("sizes", "capacity", "expected"),
    [
        ([4, 4, 4, 4], 8, ["01", "23"]),
        ([4, 4, 4, 4], 7, ["0", "1", "2", "3"]),
        ([4, 4, 4, 4], 16, ["0123"]),
        ([5, 3, 4, 1, 8], 8, ["01", "23", "4"]),
        ([8, 0, 0, 8], 8, ["012", "3"]),
        ([0, 0], 0, ["01"]),
        ([], 8, []),
    ],
    ids=["pairs", "alone", "all", "uneven", "empty_layers", "nothing", "no_layers"],
)
def test_groups(engine, sizes, capacity, expected):
    """Neighbouring layers go together as long as they fit."""
    named = {str(number): size for number, size in enumerate(sizes)}
    assert engine.plan_swap_groups(named, capacity) == tuple(tuple(group) for group in expected)


@contract("SW-0-01")
@PROFILE
@given(named=layers, capacity=st.integers(40, 100))
@example(named={"layer 0": 40, "layer 1": 0}, capacity=40)
def test_groups_of_any_layers(engine, named, capacity):
    """Every layer is in one group, in order; each fits, and none could take the next one's first layer."""
    groups = engine.plan_swap_groups(named, capacity)
    assert [name for group in groups for name in group] == list(named)
    held = [sum(named[name] for name in group) for group in groups]
    assert all(size <= capacity for size in held), f"{held} bytes of {capacity}"
    for size, following in zip(held, groups[1:], strict=False):
        assert size + named[following[0]] > capacity, f"{following[0]} fits into the group before it"


@contract("SW-0-01")
@pytest.mark.parametrize("size", [9, -1])
def test_no_group_for_a_layer(engine, size):
    """A layer that fits into no group is refused by name, with its bytes and the capacity."""
    with pytest.raises(ValueError, match=re.escape(f"'b' swaps {size} bytes") + ".*8"):
        engine.plan_swap_groups({"a": 1, "b": size}, 8)


@contract("SW-0-01")
@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (0, []),
        (1, []),
        (2, ["f0 launch_offload 0", "f1 wait_offload 0", "b1 launch_load 0", "b0 wait_load 0"]),
        (
            3,
            [
                "f0 launch_offload 0",
                "f1 launch_offload 1",
                "f1 wait_offload 0",
                "f2 wait_offload 1",
                "b2 launch_load 1",
                "b1 launch_load 0",
                "b1 wait_load 1",
                "b0 wait_load 0",
            ],
        ),
    ],
    ids=["none", "one", "two", "three"],
)
def test_steps(engine, groups, expected):
    """A group leaves behind its forward, and comes one backward early; the last one stays."""
    turns = {"f": "forward", "b": "backward"}
    written = [f"{turns[line[0]]} {line[1]}:{line[2:]}" for line in expected]
    assert engine.plan_swap_steps(groups) == written


@contract("SW-0-01")
def test_no_steps(engine):
    """Fewer groups than none are refused."""
    with pytest.raises(ValueError, match="-1"):
        engine.plan_swap_steps(-1)


@contract("SW-0-01")
@pytest.mark.parametrize("groups", [4, 9])
def test_steps_of_many_groups(engine, groups):
    """Each group but the last goes through its four moves, in order, and no more than two are on their way at once."""
    moves: dict[int, list[str]] = {}
    under_way: set[int] = set()
    for line in engine.plan_swap_steps(groups):
        move, group = line.partition(": ")[2].split()
        moves.setdefault(int(group), []).append(move)
        (under_way.add if move.startswith("launch") else under_way.remove)(int(group))
        assert len(under_way) <= 2, f"{sorted(under_way)} are on their way at {line}"
    in_order = ["launch_offload", "wait_offload", "launch_load", "wait_load"]
    assert moves == dict.fromkeys(range(groups - 1), in_order)
