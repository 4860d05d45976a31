"""Layouts, placements, and the way from the one to the other and back."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import example, given

from hyper_parallel_tests.domains.dtensor.properties import PROFILE, axis_orders
from hyper_parallel_tests.domains.dtensor.reference import coordinates, divide
from hyper_parallel_tests.harness import contract

NAMES = ("dp", "sp", "mp")

# Examples of MindSpore's documentation of Layout and of HyperParallel's, and their like.
TENSOR_MAPS = [
    pytest.param(("dp", "mp"), (2, 0), id="documented"),
    pytest.param(("dp", "None"), (2, -1), id="whole"),
    pytest.param((("dp", "sp"), "mp"), ((2, 1), 0), id="two_axes"),
    pytest.param((("mp", "dp"), "None"), ((0, 2), -1), id="two_axes_inner_first"),
    pytest.param(("None", "None"), (-1, -1), id="replicated"),
    pytest.param((), (), id="scalar"),
]


def names(aliases: list[list[str]]) -> list:
    """As a layout is called: nothing is "None", one axis its name, several a tuple."""
    return ["None" if not one else one[0] if len(one) == 1 else tuple(one) for one in aliases]


def world_of(engine, shape, rank: int | None = None):
    size = math.prod(shape)
    return engine.simulated_world(size - 1 if rank is None else rank, size)


def kinds(engine) -> list:
    """Placements that all differ."""
    reductions = [engine.Partial(op) for op in ("sum", "avg", "max", "min")]
    return [engine.Replicate(), engine.Shard(0), engine.Shard(1), engine.Shard(-1), *reductions]


@contract("DT-0-03")
def test_placements_are_values(engine):
    """Placements made alike are equal, hash alike and survive pickling; all others differ."""
    ones, others = kinds(engine), kinds(engine)
    for i, one in enumerate(ones):
        assert [one == other for other in others] == [i == j for j in range(len(others))]
        assert hash(one) == hash(others[i])
        assert pickle.loads(pickle.dumps(one)) == one
    assert len({*ones, *others}) == len(ones)
    assert engine.Partial() == engine.Partial("sum")


@contract("DT-0-03")
def test_strided_shards_are_values(engine):
    """A strided shard differs from a plain one, and from another by dimension and factor."""
    ones = [engine.StridedShard(dim, split_factor=factor) for dim in (0, 1) for factor in (2, 4)]
    assert len({*ones, engine.Shard(0), engine.Shard(1)}) == 6
    assert ones[0] == engine.StridedShard(0, split_factor=2)
    assert hash(ones[0]) == hash(engine.StridedShard(0, split_factor=2))
    assert engine.Shard(0) != ones[0] != engine.Shard(0)


@contract("DT-0-03")
@pytest.mark.parametrize(("aliases", "expected"), TENSOR_MAPS)
def test_tensor_map(engine, aliases, expected):
    """A tensor map counts axes from the innermost of the device matrix, -1 for none, the outermost division first."""
    with world_of(engine, (2, 2, 2)):
        layout = engine.Layout((2, 2, 2), NAMES)(*aliases)
        assert layout.tensor_map == expected
        assert tuple(layout.alias_tensor_map) == aliases
        assert layout.to_dict() == {
            "mesh_shape": (2, 2, 2),
            "tensor_map": expected,
            "interleaved_parallel": False,
            "alias_name": NAMES,
            "rank_list": tuple(range(8)),
        }


@contract("DT-0-03")
@PROFILE
@given(axis_orders())
@example(((2, 3), [[1, 0], [], []]))
@example(((2, 3, 2), [[2, 0, 1], [], []]))
@example(((2, 2, 3), [[1, 0], [], [2]]))
def test_layout_to_placements_and_back(engine, order):
    """Whatever axes divide which dimension in whatever order, placements say the same and give the layout back."""
    shape, axes = order
    aliases = names([[NAMES[axis] for axis in one] for one in axes])
    with world_of(engine, shape):
        layout = engine.Layout(shape, NAMES[: len(shape)])(*aliases)
        mesh = engine.init_device_mesh("cpu", shape, mesh_dim_names=NAMES[: len(shape)])
        back = engine.layout_from_placements(mesh, layout.placements, 3)
        assert back == layout
        assert back.tensor_map == layout.tensor_map
        assert list(engine.layout_from_placements(mesh, back.placements, 3).placements) == list(layout.placements)


@contract("DT-0-03")
@pytest.mark.parametrize("aliases", [("dp", "mp"), (("dp", "mp"), "None"), (("mp", "dp"), "None")], ids=str)
def test_layout_and_placements_cut_alike(engine, aliases):
    """A tensor distributed by a layout's placements is cut as the layout's axes say, the outermost division first."""
    shape, full = (2, 3), torch.arange(72).reshape(12, 6)
    for rank, coordinate in enumerate(coordinates(shape)):
        with world_of(engine, shape, rank):
            layout = engine.Layout(shape, ("dp", "mp"))(*aliases)
            mesh = engine.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "mp"))
            local = engine.distribute_tensor(full, mesh, layout.placements).to_local()
        axes = {"dp": (2, coordinate[0]), "mp": (3, coordinate[1])}
        per_dim = [one if isinstance(one, tuple) else (one,) for one in aliases]
        cuts = [(dim, *axes[name]) for dim, one in enumerate(per_dim) for name in one if name != "None"]
        assert local.tolist() == divide(full, cuts).tolist(), f"rank {rank}"


@contract("DT-0-03")
@pytest.mark.parametrize("reduce_op", ["sum", "avg", "max", "min"])
def test_partial_placements(engine, reduce_op):
    """A Partial placement is the reduction of its axis in the layout, divides nothing, and comes back."""
    with world_of(engine, (2, 3)):
        mesh = engine.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "mp"))
        placements = [engine.Partial(reduce_op), engine.Shard(1)]
        layout = engine.layout_from_placements(mesh, placements, 2)
        assert layout.is_partial()
        assert list(layout.partial) == [reduce_op, None]
        assert tuple(layout.tensor_map) == (-1, 0)
        assert list(layout.placements) == placements
        assert not engine.layout_from_placements(mesh, [engine.Replicate(), engine.Shard(1)], 2).is_partial()


@contract("DT-0-03")
def test_negative_dimensions(engine):
    """A dimension counted from the end is the same layout as the one counted from the start."""
    with world_of(engine, (2, 3)):
        mesh = engine.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "mp"))
        from_end = engine.layout_from_placements(mesh, [engine.Shard(-1), engine.Replicate()], 3)
        assert from_end == engine.layout_from_placements(mesh, [engine.Shard(2), engine.Replicate()], 3)
        assert tuple(from_end.tensor_map) == (-1, -1, 1)


@contract("DT-0-03")
@pytest.mark.parametrize("part", ["matrix", "names", "ranks", "map", "order", "partial"])
def test_layouts_are_values(engine, part):
    """Layouts made alike are equal; they differ when any one part does."""
    with engine.simulated_world(0, 16):
        matrix, axes, ranks, aliases = (2, 4), ("dp", "mp"), range(8), (("dp", "mp"), "None")
        one = engine.Layout(matrix, axes, ranks)(*aliases)
        assert one == engine.Layout(matrix, axes, ranks)(*aliases)
        if part == "partial":
            mesh = engine.init_device_mesh("cpu", matrix, mesh_dim_names=axes, rank_list=list(ranks))
            sides = [[engine.Partial(op), engine.Shard(0)] for op in ("sum", "max")]
            assert len({str(engine.layout_from_placements(mesh, side, 2).partial) for side in sides}) == 2
            one, other = (engine.layout_from_placements(mesh, side, 2) for side in sides)
        else:
            other = {
                "matrix": lambda: engine.Layout((4, 2), axes, ranks)(*aliases),
                "names": lambda: engine.Layout(matrix, ("dp", "tp"), ranks)(("dp", "tp"), "None"),
                "ranks": lambda: engine.Layout(matrix, axes, range(8, 16))(*aliases),
                "map": lambda: engine.Layout(matrix, axes, ranks)("None", ("dp", "mp")),
                "order": lambda: engine.Layout(matrix, axes, ranks)(("mp", "dp"), "None"),
            }[part]()
        assert one != other


@contract("DT-0-03")
def test_equal_layouts_hash_alike(engine):
    """Layouts can be keys: equal ones find the same entry, others another."""
    with engine.simulated_world(0, 8):
        matrix = engine.Layout((2, 4), ("dp", "mp"))
        assert len({matrix("dp", "mp"), matrix("dp", "mp"), matrix("mp", "dp"), matrix("dp", "None")}) == 3


@contract("DT-0-03")
@PROFILE
@given(axis_orders())
def test_repeat_num(engine, order):
    """Each element is held by as many ranks as the axes that divide nothing have together."""
    shape, axes = order
    with world_of(engine, shape):
        layout = engine.Layout(shape, NAMES[: len(shape)])(*names([[NAMES[axis] for axis in one] for one in axes]))
        used = {axis for one in axes for axis in one}
        assert layout.repeat_num() == math.prod(size for axis, size in enumerate(shape) if axis not in used)
        splits = [math.prod(shape[axis] for axis in one) for one in axes]
        assert tuple(layout.get_global_shape((5, 1, 2))) == (5 * splits[0], splits[1], 2 * splits[2])


@contract("DT-0-03")
def test_repeat_num_before_the_last_stage(engine):
    """A layout that ends before the world does is of an earlier pipeline stage, which has no loss to scale: -1."""
    with engine.simulated_world(0, 8):
        assert engine.Layout((2, 2), ("dp", "mp"), range(4))("dp", "None").repeat_num() == -1
        assert engine.Layout((2, 2), ("dp", "mp"), range(4, 8))("dp", "None").repeat_num() == 2


@contract("DT-0-03")
@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        pytest.param(lambda layout: layout((2, 2), ("dp", "mp"))("tp", "None"), "tp", id="unknown_axis"),
        pytest.param(lambda layout: layout((2, 2), ("dp", "mp"))("dp", "dp"), "dp", id="axis_twice"),
        pytest.param(lambda layout: layout((2, 2), ("dp", "mp"))(("dp", "dp"), "None"), "dp", id="axis_twice_in_one"),
        pytest.param(lambda layout: layout((2, 2), ("dp",)), "name", id="too_few_names"),
        pytest.param(lambda layout: layout((2, 2), ("dp", "dp")), "dp", id="name_twice"),
        pytest.param(lambda layout: layout((2, 2), ("dp", "None")), "None", id="name_none"),
        pytest.param(lambda layout: layout((2, 2), ("dp", "mp"), range(3)), "3", id="too_few_ranks"),
        pytest.param(lambda layout: layout((2, 2), ("dp", "mp")).repeat_num(), "dp", id="of_no_tensor"),
    ],
)
def test_impossible_layouts(engine, make, culprit):
    """A layout that cannot be is refused, and the message has what is wrong."""
    with engine.simulated_world(0, 4), pytest.raises(ValueError, match=culprit):
        make(engine.Layout)


@contract("DT-0-03")
def test_layout_of_a_dimension_out_of_range(engine):
    """A placement that divides a dimension which the tensor lacks is refused, and the message has the dimension."""
    with world_of(engine, (2, 2)):
        mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "mp"))
        with pytest.raises(ValueError, match=r"\b3\b"):
            engine.layout_from_placements(mesh, [engine.Shard(3), engine.Replicate()], 2)
