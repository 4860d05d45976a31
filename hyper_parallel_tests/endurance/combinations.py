"""What is trained for long: a small decoder that learns to continue rows, laid over the ranks in one way or another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.engines.port import EngineUnsupported
from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.decoder import Decoder, DecoderShape, decoder, decoder_loss
from hyper_parallel_tests.models.decoder_layouts import lay_out, step_of
from hyper_parallel_tests.models.moe import MoeDecoder, MoeShape, moe_decoder
from hyper_parallel_tests.models.seeding import Batch, generator

__all__ = [
    "Training",
    "alone",
    "batch",
    "expert_fsdp",
    "fsdp",
    "fsdp_recomputation",
    "fsdp_swap",
    "optimizer",
    "shard",
    "tensor_fsdp",
    "tensor_pipeline",
    "whole",
    "whole_moe",
]

SHAPE = DecoderShape(vocab=32, hidden=16, layers=2, heads=4, kv_heads=2, ffn=24, seq=8, tied=False)
MOE = MoeShape(
    vocab=32, hidden=16, layers=2, heads=4, kv_heads=2, ffn=24, expert_ffn=12, dense_layers=1, seq=8, tied=False
)
ROWS, MICRO_BATCHES = 4, 2

# With an epsilon far above the rounding of gradients, so that what is rounded otherwise is not taken for a direction.
optimizer = partial(torch.optim.AdamW, lr=1e-2, eps=1e-3, foreach=False)


@dataclass(frozen=True)
class Training:
    """One rank's part of a model in training.

    Attributes:
        model: as the engine made it.
        step: forward and backward of this rank's rows; gives their loss, None on the stages before the last.
        part: this rank's rows of a batch.
        params: name -> parameter, as without what is wrapped around parts of the model; the model's own unless given.
    """

    model: nn.Module
    step: Callable[[Batch], Tensor | None]
    part: Callable[[Batch], Batch]
    params: dict[str, nn.Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.params:
            self.params.update(self.model.named_parameters())


def batch(world: World, step: int) -> Batch:
    """The rows of all ranks at a step, (ROWS, seq): each token tells the next one, but for one in five.

    There are as many as steps, so that a run of any length goes on learning and its loss has a floor.
    """
    random = generator(step, "endurance")
    tokens = torch.randint(SHAPE.vocab, (ROWS, SHAPE.seq + 1), generator=random)
    told = torch.rand(tokens.shape, generator=random) < 0.8
    for place in range(1, SHAPE.seq + 1):
        follows = (5 * tokens[:, place - 1] + 3) % SHAPE.vocab
        tokens[:, place] = torch.where(told[:, place], follows, tokens[:, place])
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()).to(world.device)


def whole(world: World) -> Decoder:
    """The decoder on one card."""
    return decoder(SHAPE).to(world.device)


def whole_moe(world: World) -> MoeDecoder:
    """The decoder with experts on one card."""
    return moe_decoder(MOE).to(world.device)


def tensor_fsdp(engine: Any, world: World) -> Training:
    """Divided layers in shards; 4 cards."""
    mesh = world.mesh(fsdp=2, tp=2)
    model = lay_out(engine, whole(world), mesh["tp"]).model
    shard(engine, model, model.blocks.values(), mesh["fsdp"])
    return Training(model, partial(_plain_step, model), partial(Batch.part, rank=mesh.get_local_rank("fsdp"), size=2))


def tensor_pipeline(engine: Any, world: World) -> Training:
    """Divided layers in two stages; 4 cards."""
    mesh = world.mesh(pp=2, tp=2)
    laid = lay_out(engine, whole(world), mesh, micro_batches=MICRO_BATCHES)
    return Training(laid.model, step_of(engine, laid, mesh, MICRO_BATCHES), laid.part)


def fsdp(engine: Any, world: World) -> Training:
    """Shards; 2 cards."""
    return _wrapped(engine, world, lambda block: block)


def fsdp_recomputation(engine: Any, world: World) -> Training:
    """Shards, and each block computed again in backward; 2 cards."""
    return _wrapped(engine, world, engine.checkpoint_wrapper)


def fsdp_swap(engine: Any, world: World) -> Training:
    """Shards, and what each block saves on the host meanwhile; 2 cards."""
    training = _wrapped(engine, world, engine.swap_wrapper)
    first, second = training.model.blocks
    engine.SwapManager().set_forward_prefetch_layer(first, second)
    return training


def expert_fsdp(engine: Any, world: World) -> Training:
    """Experts on two ranks each, in shards as is the rest; 4 cards."""
    mesh, model = world.mesh(fsdp=2, ep=2), whole_moe(world)
    for layer in model.expert_layers():
        engine.ExpertParallel().apply(layer.experts, mesh["ep"])
        shard(engine, layer.experts, [], mesh["fsdp"])
        # They have the sum over the ranks whose rows they got, and the mean over their shards' ranks alone.
        layer.experts.set_gradient_scaling_factor(1 / mesh["ep"].size())
    shard(engine, model, model.blocks, mesh)
    return _by_rows(model, world)


def _wrapped(engine: Any, world: World, wrap: Callable[[nn.Module], nn.Module]) -> Training:
    """Shards with something around each block."""
    model = whole(world)
    shard(engine, model, model.blocks, world.mesh(fsdp=2))
    params = dict(model.named_parameters())
    model.blocks = nn.ModuleList(wrap(block) for block in model.blocks)
    return replace(_by_rows(model, world), params=params)


def shard(engine: Any, model: nn.Module, blocks: Iterable[nn.Module], mesh: Any) -> None:
    """Block by block, then the rest; each with one message where the engine has that, which changes no value."""
    for one in (*blocks, model):
        try:
            engine.fully_shard(one, mesh=mesh, comm_fusion=True)
        except EngineUnsupported:
            engine.fully_shard(one, mesh=mesh)


def _by_rows(model: nn.Module, world: World) -> Training:
    """Each rank has rows of its own."""
    return Training(model, partial(_decoder_step, model), partial(Batch.part, rank=world.rank, size=world.size))


def alone(model: nn.Module) -> Training:
    """A whole model with all rows."""
    return Training(model, partial(_decoder_step, model), lambda rows: rows)


def _decoder_step(model: nn.Module, rows: Batch) -> Tensor:
    loss = decoder_loss(model, rows)
    loss.backward()
    return loss.detach()


def _plain_step(model: nn.Module, rows: Batch) -> Tensor:
    loss = model(rows.inputs, rows.targets)
    loss.backward()
    return loss.detach()
