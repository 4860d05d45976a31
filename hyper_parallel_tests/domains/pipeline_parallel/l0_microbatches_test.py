"""Dividing a batch into micro-batches, and merging what they give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_map

from hyper_parallel_tests.harness import assert_close, contract
from hyper_parallel_tests.harness.properties import PROFILE


def rows(count: int, width: int = 3) -> torch.Tensor:
    """A batch in which all elements differ, and none is zero."""
    return torch.arange(1.0, count * width + 1).reshape(count, width)


@st.composite
def batches(draw):
    """A number of rows and one of micro-batches that they can make."""
    size = draw(st.integers(1, 40))
    return size, draw(st.integers(1, size))


def even_sizes(size: int, parts: int) -> list[int]:
    """Sizes that differ by at most one, the larger ones first."""
    return [size // parts + (one < size % parts) for one in range(parts)]


@contract("PP-0-04")
def test_microbatches_are_the_rows_in_order(engine, ledger):
    """However many rows there are, micro-batches are consecutive, differ by one row at most, and give the batch."""

    @PROFILE
    @given(batch=batches())
    def holds(batch):
        size, parts = batch
        args, kwargs = engine.split_microbatches((rows(size),), {"mask": rows(size, 1)}, parts)
        assert [len(one[0]) for one in args] == even_sizes(size, parts)
        assert_close(torch.cat([one[0] for one in args]), rows(size), ledger["exact"], what="arguments")
        assert_close(torch.cat([one["mask"] for one in kwargs]), rows(size, 1), ledger["exact"], what="mask")

    holds()


@contract("PP-0-04")
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_even_batch(engine, ledger, parts):
    """A batch that divides: equally many rows each, in order."""
    args, _ = engine.split_microbatches((rows(8),), {}, parts)
    assert [tuple(one[0].shape) for one in args] == [(8 // parts, 3)] * parts
    assert_close(torch.cat([one[0] for one in args]), rows(8), ledger["exact"], what="arguments")


@contract("PP-0-04")
def test_batch_dimension_of_each_argument(engine, ledger):
    """Each argument is divided along its own dimension: rows of one, columns of another."""
    batch = rows(4, 6)
    dims = engine.BatchDimSpec.from_tuple((1, 0))
    named = engine.BatchDimSpec.from_dict({"mask": 1})
    args, kwargs = engine.split_microbatches((batch, batch), {"mask": batch}, 2, dims, named)
    for one, (left, upper) in enumerate(args):
        columns, upper_rows = batch[:, 3 * one : 3 * one + 3], batch[2 * one : 2 * one + 2]
        assert_close(left, columns, ledger["exact"], what=f"columns of micro-batch {one}")
        assert_close(upper, upper_rows, ledger["exact"], what=f"rows of micro-batch {one}")
        assert_close(kwargs[one]["mask"], columns, ledger["exact"], what=f"mask of micro-batch {one}")


@contract("PP-0-04")
def test_whole_tensor_for_each(engine, ledger):
    """An argument with the dimension -1 goes undivided to each micro-batch, by position and by name."""
    table = rows(5)
    dims, named = engine.BatchDimSpec.from_tuple((0, -1)), engine.BatchDimSpec.from_dict({"table": -1})
    args, kwargs = engine.split_microbatches((rows(4), table), {"table": table}, 2, dims, named)
    for (batch, by_position), by_name in zip(args, kwargs, strict=True):
        assert len(batch) == 2
        assert_close(by_position, table, ledger["exact"], what="the second argument")
        assert_close(by_name["table"], table, ledger["exact"], what="the keyword argument")


@contract("PP-0-04")
def test_other_values_for_each(engine):
    """Numbers, text and None go to each micro-batch as they are."""
    args, kwargs = engine.split_microbatches((rows(4), 7, None), {"mode": "causal"}, 2)
    assert [one[1:] for one in args] == [(7, None)] * 2
    assert kwargs == [{"mode": "causal"}] * 2


@contract("PP-0-04")
def test_nested_arguments(engine, ledger):
    """Tensors within tuples and dicts are divided too, and the structure stays."""
    args, _ = engine.split_microbatches(({"image": rows(4), "sizes": (rows(4, 1), 3)},), {}, 2)
    for one, (found,) in enumerate(args):
        assert found["sizes"][1] == 3
        half = slice(2 * one, 2 * one + 2)
        assert_close(found["image"], rows(4)[half], ledger["exact"], what=f"images of micro-batch {one}")
        assert_close(found["sizes"][0], rows(4, 1)[half], ledger["exact"], what=f"sizes of micro-batch {one}")


@contract("PP-0-04")
def test_keyword_arguments_alone(engine, ledger):
    """A stage that is called with keywords only gets them divided, and empty positional arguments."""
    args, kwargs = engine.split_microbatches((), {"hidden": rows(6)}, 3)
    assert [len(one) for one in args] == [0] * 3
    assert_close(torch.cat([one["hidden"] for one in kwargs]), rows(6), ledger["exact"], what="hidden")


@contract("PP-0-04")
def test_no_arguments(engine):
    """A stage in the middle is called without arguments: as many empty ones as there are micro-batches."""
    args, kwargs = engine.split_microbatches((), {}, 3)
    assert [len(one) for one in args] == [0] * 3
    assert kwargs == [{}] * 3


@contract("PP-0-04")
@pytest.mark.parametrize("named", [False, True], ids=["positional", "keyword"])
def test_too_few_rows(engine, named):
    """A batch with fewer rows than micro-batches is an error, rather than fewer or empty micro-batches."""
    args, kwargs = ((), {"batch": rows(3)}) if named else ((rows(3),), {})
    with pytest.raises(ValueError, match=r"\b3\b.*4|4.*\b3\b"):
        engine.split_microbatches(args, kwargs, 4)


@contract("PP-0-04")
def test_gradients_reach_the_batch(engine, ledger):
    """Micro-batches are parts of the batch: what is computed with them has gradients for it."""
    batch = rows(5).requires_grad_()
    args, _ = engine.split_microbatches((batch,), {}, 2)
    sum((number + 1) * one[0].sum() for number, one in enumerate(args)).backward()
    assert batch.grad is not None, "the batch has no gradient"
    expected = torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0])[:, None].expand(5, 3)
    assert_close(batch.grad, expected, ledger["exact"], what="gradient of the batch")


@contract("PP-0-04")
def test_target_is_divided_as_the_batch(engine, ledger):
    """The loss of a micro-batch is for its own rows, also where they are uneven."""

    @PROFILE
    @given(batch=batches())
    def holds(batch):
        size, parts = batch
        targets = engine.split_target(rows(size), parts)
        args, _ = engine.split_microbatches((rows(size),), {}, parts)
        for one, ((inputs,), target) in enumerate(zip(args, targets, strict=True)):
            assert_close(target, inputs, ledger["exact"], what=f"target of micro-batch {one}")

    holds()


@contract("PP-0-04")
def test_target_of_too_few_rows(engine):
    """A target with fewer rows than micro-batches is an error."""
    with pytest.raises(ValueError, match=r"\b3\b.*\b4\b"):
        engine.split_target(rows(3), 4)


@contract("PP-0-04")
@pytest.mark.parametrize("structure", ["tensor", "tuple", "dict"])
def test_merging_inverts_the_split(engine, ledger, structure):
    """The outputs of an uneven batch's micro-batches are merged in order, in the structure that they have."""
    batch = {"tensor": rows(7), "tuple": (rows(7), rows(7, 1)), "dict": {"logits": rows(7)}}[structure]
    args, _ = engine.split_microbatches((batch,), {}, 3)
    merged = engine.merge_microbatches([one for (one,) in args])
    tree_map(lambda found, whole: assert_close(found, whole, ledger["exact"], what="merged"), merged, batch)


@contract("PP-0-04")
def test_merging_along_a_dimension(engine, ledger):
    """Outputs are merged along the dimension that is given for each."""
    spec = engine.BatchDimSpec
    parts = [(rows(6)[:, :2], rows(6)[:3]), (rows(6)[:, 2:], rows(6)[3:])]
    columns, upper = engine.merge_microbatches(parts, (spec(1), spec(0)))
    assert_close(columns, rows(6), ledger["exact"], what="merged along columns")
    assert_close(upper, rows(6), ledger["exact"], what="merged along rows")


@contract("PP-0-04")
@pytest.mark.parametrize(
    ("outputs", "dims"),
    [
        ([(rows(2), rows(2)), (rows(2),)], None),
        ([(rows(2), rows(2))] * 2, 1),
        ([{"logits": rows(2)}, {"hidden": rows(2)}], None),
    ],
    ids=["other_count", "one_dimension_for_two", "other_names"],
)
def test_outputs_of_different_structure(engine, outputs, dims):
    """Outputs that do not have one structure are an error, rather than merged with each other."""
    with pytest.raises(ValueError, match=r"\S"):
        engine.merge_microbatches(outputs, dims and (engine.BatchDimSpec(0),) * dims)


@contract("PP-0-04")
@pytest.mark.parametrize("wrong", ["0", None, 1.0])
def test_dimension_is_a_number(engine, wrong):
    """The batch dimension is a whole number, alone and in a tuple or dict of them."""
    for make in (
        engine.BatchDimSpec,
        lambda dim: engine.BatchDimSpec.from_tuple((0, dim)),
        lambda dim: engine.BatchDimSpec.from_dict({"x": dim}),
    ):
        with pytest.raises(TypeError, match="int|number"):
            make(wrong)


@contract("PP-0-04")
def test_dimensions_are_in_a_tuple_or_dict(engine):
    """Dimensions for several arguments come in the container of its kind of arguments."""
    with pytest.raises(TypeError, match="tuple"):
        engine.BatchDimSpec.from_tuple([0, 1])
    with pytest.raises(TypeError, match="dict"):
        engine.BatchDimSpec.from_dict((0, 1))
