"""How parameters and activations lie on the ranks under each style."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.harness import contract

RANKS, RANK = 4, 1
WIDTH, WIDER, VOCAB = 8, 12, 16
ROWS, TOKENS = 2, 20


class Row(NamedTuple):
    """A layer under a style.

    Attributes:
        layer: makes the layer.
        style, options: name of the style, and its options besides the placements.
        parameters: name -> (placement, shape of the part).
        input: shape of this rank's input; int64 for an embedding.
        output: placement of the output, and shape of the part.
    """

    layer: Callable[[], nn.Module]
    style: str
    parameters: dict[str, tuple[str, tuple[int, ...]]]
    input: tuple[int, ...]
    output: tuple[str, tuple[int, ...]]
    input_layouts: str | None = None
    output_layouts: str | None = None


def linear(bias: bool) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(WIDTH, WIDER, bias=bias)


BATCH = (ROWS, TOKENS)
WHOLE, PART = (*BATCH, WIDTH), (*BATCH, WIDTH // RANKS)
OWN_TOKENS = (ROWS, TOKENS // RANKS, WIDTH)
COLUMNS, ROWS_OF_TABLE = (WIDER // RANKS, WIDTH), (VOCAB // RANKS, WIDTH)
FIRST, SECOND, ALL = "Shard(0)", "Shard(1)", "Replicate()"
VECTOR = (ALL, (WIDTH,))

TABLE = {
    "column_linear": Row(
        linear(True),
        "ColwiseParallel",
        {"weight": (FIRST, COLUMNS), "bias": (FIRST, (WIDER // RANKS,))},
        WHOLE,
        ("Shard(2)", (*BATCH, WIDER // RANKS)),
    ),
    "column_linear_without_bias": Row(
        linear(False),
        "ColwiseParallel",
        {"weight": (FIRST, COLUMNS)},
        WHOLE,
        ("Shard(2)", (*BATCH, WIDER // RANKS)),
    ),
    "column_linear_of_own_tokens": Row(
        linear(True),
        "ColwiseParallel",
        {"weight": (FIRST, COLUMNS), "bias": (FIRST, (WIDER // RANKS,))},
        OWN_TOKENS,
        ("Shard(2)", (*BATCH, WIDER // RANKS)),
        input_layouts=SECOND,
    ),
    "column_linear_gathered": Row(
        linear(False),
        "ColwiseParallel",
        {"weight": (FIRST, COLUMNS)},
        WHOLE,
        (ALL, (*BATCH, WIDER)),
        output_layouts=ALL,
    ),
    "row_linear": Row(
        linear(True),
        "RowwiseParallel",
        {"weight": (SECOND, (WIDER, WIDTH // RANKS)), "bias": (ALL, (WIDER,))},
        PART,
        (ALL, (*BATCH, WIDER)),
    ),
    "row_linear_without_bias": Row(
        linear(False), "RowwiseParallel", {"weight": (SECOND, (WIDER, WIDTH // RANKS))}, PART, (ALL, (*BATCH, WIDER))
    ),
    "row_linear_to_own_tokens": Row(
        linear(True),
        "RowwiseParallel",
        {"weight": (SECOND, (WIDER, WIDTH // RANKS)), "bias": (ALL, (WIDER,))},
        PART,
        (SECOND, (ROWS, TOKENS // RANKS, WIDER)),
        output_layouts=SECOND,
    ),
    "row_linear_of_the_whole": Row(
        linear(False),
        "RowwiseParallel",
        {"weight": (SECOND, (WIDER, WIDTH // RANKS))},
        WHOLE,
        (ALL, (*BATCH, WIDER)),
        input_layouts=ALL,
    ),
    "column_embedding": Row(
        lambda: nn.Embedding(VOCAB, WIDTH),
        "ColwiseParallel",
        {"weight": (SECOND, (VOCAB, WIDTH // RANKS))},
        BATCH,
        ("Shard(2)", PART),
    ),
    "row_embedding": Row(
        lambda: nn.Embedding(VOCAB, WIDTH),
        "RowwiseParallel",
        {"weight": (FIRST, ROWS_OF_TABLE)},
        BATCH,
        (ALL, WHOLE),
        input_layouts=ALL,
    ),
    "row_embedding_to_own_tokens": Row(
        lambda: nn.Embedding(VOCAB, WIDTH),
        "RowwiseParallel",
        {"weight": (FIRST, ROWS_OF_TABLE)},
        BATCH,
        (SECOND, OWN_TOKENS),
        input_layouts=ALL,
        output_layouts=SECOND,
    ),
    "layer_norm": Row(
        lambda: nn.LayerNorm(WIDTH),
        "SequenceParallel",
        {"weight": VECTOR, "bias": VECTOR},
        OWN_TOKENS,
        (SECOND, OWN_TOKENS),
    ),
    "layer_norm_without_bias": Row(
        lambda: nn.LayerNorm(WIDTH, bias=False),
        "SequenceParallel",
        {"weight": VECTOR},
        OWN_TOKENS,
        (SECOND, OWN_TOKENS),
    ),
    "rms_norm": Row(
        lambda: nn.RMSNorm(WIDTH), "SequenceParallel", {"weight": VECTOR}, OWN_TOKENS, (SECOND, OWN_TOKENS)
    ),
    "dropout": Row(lambda: nn.Dropout(), "SequenceParallel", {}, OWN_TOKENS, (SECOND, OWN_TOKENS)),
}


@pytest.fixture
def mesh(engine):
    with engine.simulated_world(RANK, RANKS):
        yield engine.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))


def placement(engine: Any, name: str) -> Any:
    return {FIRST: engine.Shard(0), SECOND: engine.Shard(1), "Shard(2)": engine.Shard(2), ALL: engine.Replicate()}[name]


def styled(engine: Any, mesh: Any, row: Row, use_local_output: bool) -> nn.Module:
    layouts = {key: getattr(row, key) for key in ("input_layouts", "output_layouts") if getattr(row, key)}
    options = {key: placement(engine, name) for key, name in layouts.items()}
    style = getattr(engine, row.style)(use_local_output=use_local_output, **options)
    return engine.parallelize_module(row.layer(), mesh, style)


def own_input(row: Row) -> Tensor:
    return torch.zeros(row.input, dtype=torch.int64) if len(row.input) == 2 else torch.ones(row.input)


each_row = pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)


@contract("TP-0-01")
@each_row
def test_parameters(engine, mesh, row):
    """Each parameter is divided as the style says, still one that is trained, and none is left out."""
    layer = styled(engine, mesh, row, use_local_output=True)
    found = dict(layer.named_parameters())
    assert set(found) == set(row.parameters)
    for name, (where, shape) in row.parameters.items():
        parameter = found[name]
        assert isinstance(parameter, nn.Parameter)
        assert parameter.requires_grad
        assert tuple(parameter.placements) == (placement(engine, where),)
        assert tuple(parameter.to_local().shape) == shape
        assert tuple(parameter.shape) == tuple(getattr(row.layer(), name).shape)


@contract("TP-0-01")
@each_row
def test_output(engine, mesh, row):
    """The output lies as the style says, as a distributed tensor or as this rank's part of it."""
    where, shape = row.output
    distributed = styled(engine, mesh, row, use_local_output=False)(own_input(row))
    assert tuple(distributed.placements) == (placement(engine, where),)
    assert tuple(distributed.to_local().shape) == shape
    local = styled(engine, mesh, row, use_local_output=True)(own_input(row))
    assert not hasattr(local, "placements")
    assert tuple(local.shape) == shape


@contract("TP-0-01")
def test_frozen_parameters_stay_frozen(engine, mesh):
    """What is not trained is not trained after it was divided."""
    for style in (engine.ColwiseParallel, engine.RowwiseParallel):
        layer = nn.Linear(WIDTH, WIDER)
        layer.weight.requires_grad_(False)
        engine.parallelize_module(layer, mesh, style())
        assert {name: one.requires_grad for name, one in layer.named_parameters()} == {"weight": False, "bias": True}


class Two(nn.Module):
    """Returns what it is given, in place and by name."""

    def forward(self, first: Tensor, second: Tensor, *, named: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return first, second, named


@contract("TP-0-01")
def test_inputs_laid_out_anew(engine, mesh):
    """Inputs in place and by name get the desired placement, those without one pass as they are."""
    shard, whole = engine.Shard(1), engine.Replicate()
    module = engine.parallelize_module(
        Two(),
        mesh,
        engine.PrepareModuleInput(
            input_layouts=(shard, None),
            desired_input_layouts=(whole, None),
            input_kwarg_layouts={"named": whole},
            desired_input_kwarg_layouts={"named": shard},
        ),
    )
    untouched = torch.ones(3)
    first, second, named = module(torch.ones(OWN_TOKENS), untouched, named=torch.ones(WHOLE))
    assert (tuple(first.placements), tuple(first.to_local().shape)) == ((whole,), WHOLE)
    assert second is untouched
    assert (tuple(named.placements), tuple(named.to_local().shape)) == ((shard,), OWN_TOKENS)


@contract("TP-0-01")
@pytest.mark.parametrize("both", [False, True], ids=["output", "input_and_output"])
def test_outputs_laid_out_anew(engine, mesh, both):
    """Plain outputs have the placement given, and come back with the desired one as local parts."""
    shard, whole = engine.Shard(1), engine.Replicate()
    options = {"output_layouts": whole, "desired_output_layouts": shard}
    if both:
        inputs = {"input_layouts": shard, "desired_input_layouts": whole, "use_local_input": True}
        style = engine.PrepareModuleInputOutput(**inputs, **options)
    else:
        style = engine.PrepareModuleOutput(**options)
    module = engine.parallelize_module(nn.Identity(), mesh, style)
    found = module(torch.ones(OWN_TOKENS if both else WHOLE))
    assert not hasattr(found, "placements")
    assert tuple(found.shape) == OWN_TOKENS


@contract("TP-0-01")
def test_as_many_layouts_as_inputs(engine, mesh):
    """Layouts that do not go by pairs, or are not as many as the inputs, are refused."""
    shard, whole = engine.Shard(1), engine.Replicate()
    with pytest.raises(AssertionError, match="same length"):
        engine.PrepareModuleInput(input_layouts=(shard, whole), desired_input_layouts=(whole,))
    with pytest.raises(AssertionError, match="same length"):
        engine.PrepareModuleOutput(output_layouts=(shard, whole), desired_output_layouts=(whole,))
    style = engine.PrepareModuleInput(input_layouts=(shard, None), desired_input_layouts=(whole, None))
    module = engine.parallelize_module(nn.Identity(), mesh, style)
    with pytest.raises(ValueError, match="same length"):
        module(torch.ones(OWN_TOKENS))
