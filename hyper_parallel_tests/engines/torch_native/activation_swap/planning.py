"""Which layers are swapped, which of them together, and when their copies start and must have ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def plan_swap_groups(layer_bytes: Mapping[str, int], capacity: int) -> tuple[tuple[str, ...], ...]:
    """See the port."""
    groups: list[list[str]] = []
    room = -1
    for name, size in layer_bytes.items():
        if not 0 <= size <= capacity:
            raise ValueError(f"layer {name!r} swaps {size} bytes: expected a number from 0 to the capacity, {capacity}")
        if size > room:
            groups.append([])
            room = capacity
        groups[-1].append(name)
        room -= size
    return tuple(tuple(group) for group in groups)


def plan_swap_steps(groups: int) -> list[str]:
    """See the port."""
    if groups < 0:
        raise ValueError(f"expected a number of groups from 0, found {groups}")
    steps = []
    for group in range(groups):
        if group + 1 < groups:
            steps.append(f"forward {group}: launch_offload {group}")
        if group:
            steps.append(f"forward {group}: wait_offload {group - 1}")
    for group in reversed(range(groups)):
        if group:
            steps.append(f"backward {group}: launch_load {group - 1}")
        if group + 1 < groups:
            steps.append(f"backward {group}: wait_load {group}")
    return steps


def generate_swap_policy(layer_bytes: Mapping[str, int], memory_budget: int) -> tuple[str, ...]:
    """See the port."""
    for name, size in layer_bytes.items():
        if size < 0:
            raise ValueError(f"layer {name!r} saves {size} bytes: expected a number from 0")
    swapped: list[str] = []
    for name in candidates(layer_bytes):
        if height(layer_bytes, swapped) <= memory_budget:
            break
        if layer_bytes[name]:
            swapped.append(name)
    if (least := height(layer_bytes, swapped)) > memory_budget:
        raise ValueError(f"a budget of {memory_budget} bytes is too small: with every layer swapped it takes {least}")
    return tuple(swapped)


def candidates(layer_bytes: Mapping[str, int]) -> list[str]:
    """Layers whose absence is felt: the last one is needed at once, the one before it is fetched at once."""
    return list(layer_bytes)[:-2]


def height(layer_bytes: Mapping[str, int], swapped: Collection[str]) -> int:
    """The most bytes on the device at any layer's turn, in forward or backward."""
    sizes = list(layer_bytes.values())
    left = [0 if name in swapped else size for name, size in layer_bytes.items()]
    return max(
        (sum(left[: max(turn - 1, 0)]) + sum(sizes[max(turn - 1, 0) : turn + 1]) for turn in range(len(sizes))),
        default=0,
    )
