"""What the demonstration faults break."""

from __future__ import annotations

NUMBERS = (1, 2, 3)


def total(numbers: tuple[int, ...]) -> int:
    """The sum of `numbers`."""
    return sum(numbers)


def product(numbers: tuple[int, ...]) -> int:
    """The product of `numbers`."""
    result = 1
    for number in numbers:
        result *= number
    return result
