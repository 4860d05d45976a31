"""Holds an operator on distributed tensors to the same operator on full tensors, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.domains.dtensor.operators.samples import distributed, drawn, local_shape
from hyper_parallel_tests.domains.dtensor.operators.table import Case
from hyper_parallel_tests.harness import assert_close

__all__ = ["check_operator"]

_FEW = "of a few elements all may be masked, rounded to zero or flat, and the tolerance would not hide another value"


def check_operator(engine: Any, mesh: Any, case: Case, ledger: Any) -> None:
    """Results and gradients on distributed inputs equal those on the full inputs.

    Args:
        engine, mesh: of the case; every rank of the mesh calls this.
        case: operator, placings and sizes.
        ledger: of the case.

    Raises:
        AssertionError: a result or gradient has another value, shape or dtype, or is no DTensor, or a rank's part has
            not the shape that follows from the placements.
    """
    tolerance = ledger[case.operator.tolerance]
    plain = drawn(case, mesh.size())
    placed = [
        distributed(engine, mesh, full, tuple(placing[number] for placing in case.placings), seed=number)
        for number, full in enumerate(plain)
    ]
    wanted = _results(case, plain, lambda operator, *inputs: operator(*inputs))
    with _told(case):
        found = _results(case, placed, engine.apply_operator)
    assert len(found) == len(wanted), f"{case} gives {len(found)} tensors, expected {len(wanted)}"
    for number, (one, expected) in enumerate(zip(found, wanted, strict=True)):
        _check_result(engine, one, expected, tolerance, f"{case}: result {number}")
    differentiable = [number for number, result in enumerate(wanted) if result.requires_grad]
    if not differentiable:
        return
    cotangents = [_cotangent(wanted[number]) for number in differentiable]
    torch.autograd.backward([wanted[number] for number in differentiable], cotangents)
    with _told(case):
        engine.backward([found[number] for number in differentiable], cotangents)
    for number in case.operator.sources:
        what, expected, gradient = f"{case}: input {number}", plain[number].grad, engine.full_gradient(placed[number])
        assert (gradient is None) == (expected is None), f"{what} has {_some(gradient)}, expected {_some(expected)}"
        if expected is not None:
            assert_close(gradient, expected, tolerance, what=f"{what}: gradient", zero_because=_FEW)


@contextmanager
def _told(case: Case) -> Iterator[None]:
    """Adds the case to an exception, and keeps its kind: by it an engine that does not offer something is known."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{case.operator.name} of inputs placed as {case.placements}, {case.sizes} shards")
        raise


def _results(case: Case, inputs: list[Any], apply: Callable[..., Any]) -> list[Any]:
    for number in case.operator.sources:
        inputs[number].requires_grad_()
    results = apply(case.operator.call, *inputs)
    return [results] if isinstance(results, Tensor) else list(results)


def _cotangent(result: Tensor) -> Tensor:
    """A different weight for each element, so that a gradient in the wrong place or of the wrong size shows."""
    weights = torch.sin(torch.arange(1, result.numel() + 1, dtype=result.dtype))
    return (weights + 1.5).reshape(result.shape)


def _some(gradient: Any) -> str:
    return "no gradient" if gradient is None else "a gradient"


def _check_result(engine: Any, found: Any, expected: Tensor, tolerance: Any, what: str) -> None:
    assert isinstance(found, engine.DTensor), f"{what} is a {type(found).__name__}, expected a DTensor"
    assert tuple(found.shape) == tuple(expected.shape), f"{what}: shape {found.shape}, expected {expected.shape}"
    assert found.dtype == expected.dtype, f"{what}: dtype {found.dtype}, expected {expected.dtype}"
    local, due = tuple(found.to_local().shape), local_shape(found)
    assert due is None or local == due, f"{what}: this rank's part is {local}, but {due} by {found.placements}"
    assert_close(found, expected, tolerance, what=what, zero_because=_FEW)
