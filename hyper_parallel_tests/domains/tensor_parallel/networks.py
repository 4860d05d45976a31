"""Networks divided by plans as a user would write them, and what each rank gives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.decoder import Attention, DecoderShape, FeedForward, decoder, decoder_batch
from hyper_parallel_tests.models.mlp import mlp
from hyper_parallel_tests.models.seeding import Batch, build, generator

# Four key-value heads, so that four ranks have one each; width 16 and inner width 48 divide by four too.
GROUPED = DecoderShape(hidden=32, layers=1, heads=8, kv_heads=4, vocab=24, seq=8, tied=False)
EQUAL = DecoderShape(hidden=32, layers=1, heads=4, kv_heads=4, vocab=24, seq=8, tied=False)
TIED = DecoderShape(hidden=32, layers=1, heads=8, kv_heads=4, vocab=24, seq=8, tied=True)
UNEVEN_VOCAB = DecoderShape(hidden=32, layers=1, heads=8, kv_heads=4, vocab=25, seq=8, tied=False)

STEPS = 2
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def mesh_of(world: World) -> Any:
    return world.mesh(tp=world.size)


def mlp_plan(engine: Any, sequence: bool = False) -> dict[str, Any]:
    """Of an `Mlp` of two layers: columnwise, then rowwise; with `sequence` tokens come and go divided."""
    tokens = engine.Shard(1) if sequence else engine.Replicate()
    return {
        "layers.0": engine.ColwiseParallel(input_layouts=tokens),
        "layers.1": engine.RowwiseParallel(output_layouts=tokens),
    }


def divided_mlp(engine: Any, world: World, *, bias: bool = True, sequence: bool = False) -> nn.Module:
    model = mlp(16, 2, bias=bias).to(world.device)
    return engine.parallelize_module(model, mesh_of(world), mlp_plan(engine, sequence))


def attention_plan(engine: Any, sequence: bool = False) -> dict[str, Any]:
    """Of an `Attention`. The input is laid out once for all three projections, and so is its gradient."""
    tokens, whole = engine.Shard(1) if sequence else engine.Replicate(), engine.Replicate()
    return {
        "": engine.PrepareModuleInput(input_layouts=(tokens, None), desired_input_layouts=(whole, None)),
        "[qkv]": engine.ColwiseParallel(),
        "o": engine.RowwiseParallel(output_layouts=tokens),
    }


def feed_forward_plan(engine: Any, sequence: bool = False) -> dict[str, Any]:
    """Of a `FeedForward`, alike."""
    tokens, whole = engine.Shard(1) if sequence else engine.Replicate(), engine.Replicate()
    return {
        "": engine.PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(whole,)),
        "gate": engine.ColwiseParallel(),
        "up": engine.ColwiseParallel(),
        "down": engine.RowwiseParallel(output_layouts=tokens),
    }


def decoder_plan(engine: Any, sequence: bool = False, whole_logits: bool = True) -> dict[str, Any]:
    """Of a `Decoder`; with `sequence` everything between embedding and output runs on this rank's tokens.

    Without `whole_logits` the output is a distributed tensor, divided by vocabulary.
    """
    tokens, whole = engine.Shard(1) if sequence else engine.Replicate(), engine.Replicate()
    blocks = {
        f"blocks.*.{part}.{name}".rstrip("."): style
        for part, plan in (("attention", attention_plan), ("ffn", feed_forward_plan))
        for name, style in plan(engine, sequence).items()
    }
    norms = {name: engine.SequenceParallel() for name in ("blocks.*.attention_norm", "blocks.*.ffn_norm", "norm")}
    return {
        "embedding": engine.RowwiseParallel(input_layouts=whole, output_layouts=tokens),
        **blocks,
        **(norms if sequence else {}),
        "output": engine.ColwiseParallel(
            input_layouts=tokens,
            output_layouts=whole if whole_logits else engine.Shard(-1),
            use_local_output=whole_logits,
        ),
    }


def whole_decoder(world: World, shape: DecoderShape) -> nn.Module:
    return decoder(shape).to(world.device)


def divided_decoder(
    engine: Any, world: World, shape: DecoderShape, *, sequence: bool = False, whole_logits: bool = True
) -> nn.Module:
    """A tied output is tied again afterwards, as users do where an engine forgets it."""
    model = whole_decoder(world, shape)
    engine.parallelize_module(model, mesh_of(world), decoder_plan(engine, sequence, whole_logits))
    if shape.tied:
        model.output.weight = model.embedding.weight
    return model


def logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """With positions of the whole sequence, since a rank may have only part of the tokens between the layers."""
    return model(tokens, torch.arange(tokens.shape[1], device=tokens.device))


def decoder_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(logits(model, batch.inputs).flatten(0, 1), batch.targets.flatten())


def decoder_batches(world: World, shape: DecoderShape) -> list[Batch]:
    """The same on all ranks."""
    return [decoder_batch(seed, rows=2, shape=shape).to(world.device) for seed in range(STEPS)]


def attention(world: World, shape: DecoderShape) -> nn.Module:
    return build(lambda: Attention(shape), 0).to(world.device)


def feed_forward(world: World, shape: DecoderShape) -> nn.Module:
    return build(lambda: FeedForward(shape), 0).to(world.device)


def hidden_batches(world: World, width: int, tokens: int = 8) -> list[Batch]:
    """Inputs and targets of (rows, tokens, width), the same on all ranks."""
    sources = [generator(seed, "tensor_parallel") for seed in range(STEPS)]
    return [
        Batch(*(torch.randn(2, tokens, width, generator=one) for _ in range(2))).to(world.device) for one in sources
    ]


def squared_error(model: Callable[..., Tensor], batch: Batch, *others: Tensor) -> Tensor:
    return F.mse_loss(model(batch.inputs, *others), batch.targets)


def own_tokens(world: World, whole: Tensor) -> Tensor:
    """This rank's part of (rows, tokens, ...)."""
    return whole.chunk(world.size, 1)[world.rank]
