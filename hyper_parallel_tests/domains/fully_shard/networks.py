"""The real networks of the FSDP plan's level 3: how each is wrapped, and its run beside DDP's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from hyper_parallel_tests.domains.fully_shard.setting import mine, wrap
from hyper_parallel_tests.harness import (
    World,
    assert_bitwise_repeatable,
    assert_close,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.harness.judging.parity import Step, Track
from hyper_parallel_tests.models import chunked_cross_entropy, decoder, multimodal, vit

STEPS = 2


@dataclass(frozen=True)
class Network:
    """One network of the plan in the plan's size.

    Attributes:
        make: makes it in fp32 on the CPU, with the same weights each time.
        batch: (seed, rows) -> a batch.
        loss: (model, batch) -> scalar, a mean over the batch.
        wrap: (engine, model, mesh, comm_fusion) -> None, as the plan wants it sharded.
        rows: of each rank in a step.
        rate: at which it learns.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int, int], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    wrap: Callable[[Any, nn.Module, Any, bool], None]
    rows: int
    rate: float = 0.1

    def sharded(self, engine: Any, world: World, mesh: Any, *, comm_fusion: bool) -> nn.Module:
        """The network, wrapped over the mesh."""
        model = self.make().to(world.device)
        self.wrap(engine, model, mesh, comm_fusion)
        return model

    def batches(self, world: World) -> list[Any]:
        """This rank's part of each step's batch."""
        return [mine(world, self.batch(step, self.rows * world.size).to(world.device)) for step in range(STEPS)]

    @property
    def optimizer(self) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
        """SGD, whose momentum carries step 0 into step 1.

        Not Adam: it would divide by gradients so small that they are rounding alone.
        """
        return partial(torch.optim.SGD, lr=self.rate, momentum=0.9)

    def run(self, world: World, model: nn.Module) -> Track:
        """Two steps."""
        return train(model, self.batches(world), self.loss, optimizer=self.optimizer, average=mean_over_ranks)

    def run_ddp(self, world: World) -> Track:
        """Two steps under DDP."""
        return train_baseline(
            self.make().to(world.device),
            self.batches(world),
            self.loss,
            wrap=DDP,
            optimizer=self.optimizer,
            average=mean_over_ranks,
        )


def beside_ddp(engine: Any, world: World, network: Network, mesh: Any, *, comm_fusion: bool) -> tuple[Track, Track]:
    """The sharded run, done twice and equal bit by bit, and DDP's on the same rows."""

    def run() -> Track:
        return network.run(world, network.sharded(engine, world, mesh, comm_fusion=comm_fusion))

    return assert_bitwise_repeatable(run), network.run_ddp(world)


def whole_on_every_rank(engine: Any, model: nn.Module) -> set[str]:
    """Names of the parameters of which each rank holds all rows; all ranks call this."""
    everyones: list[set[str]] = [set()] * dist.get_world_size()
    own = {one.name for one in engine.managed_parameters(model) if one.shard.shape == one.full_shape}
    dist.all_gather_object(everyones, own)
    return set.intersection(*everyones)


def names_under(model: nn.Module, *parts: str) -> set[str]:
    """Names of the parameters that begin with one of `parts`."""
    return {name for name, _ in model.named_parameters() if name.startswith(parts)}


def grads_of(step: Step, *names: str) -> dict[str, Tensor]:
    """Gradients by name; a name that begins or is one of `names`. KeyError if one of them is not there."""
    found = {name: grad for name, grad in step.grads.items() if name.startswith(names)}
    missing = [name for name in names if not any(one.startswith(name) for one in found)]
    if missing:
        raise KeyError(f"no gradient is called {', '.join(missing)}; there are {', '.join(step.grads)}")
    return found


def assert_same_gradients(candidate: Track, ddp: Track, tolerance: Any, *names: str) -> None:
    """Hold the gradients that `grads_of` finds to DDP's at each step."""
    for number, (ours, theirs) in enumerate(zip(candidate.steps, ddp.steps, strict=True)):
        what = f"step {number}: gradients"
        assert_close(grads_of(ours, *names), grads_of(theirs, *names), tolerance, what=what)


def norm_of(step: Step, *names: str) -> float:
    """2-norm, in fp64, of the gradients that `grads_of` finds."""
    return math.sqrt(sum(float(one.double().square().sum()) for one in grads_of(step, *names).values()))


def _wrap_decoder(engine: Any, model: Any, mesh: Any, comm_fusion: bool) -> None:
    wrap(engine, model, model.blocks, mesh, comm_fusion=comm_fusion)


def _wrap_chunked(engine: Any, model: Any, mesh: Any, comm_fusion: bool) -> None:
    wrap(engine, model, [*model.blocks, model.output], mesh, comm_fusion=comm_fusion)


def _wrap_vit(engine: Any, model: Any, mesh: Any, comm_fusion: bool) -> None:
    whole = {*model.encoder.patches.parameters(), *model.head.parameters()}
    wrap(engine, model, model.encoder.blocks, mesh, comm_fusion=comm_fusion, replicate_params=whole)


def _wrap_multimodal(engine: Any, model: Any, mesh: Any, comm_fusion: bool) -> None:
    """Three trees without a common root: both networks sharded, the projection between them whole."""
    for part in (model.vision, model.language):
        wrap(engine, part, part.blocks, mesh, comm_fusion=comm_fusion)
    whole = set(model.projection.parameters())
    engine.fully_shard(model.projection, mesh=mesh, comm_fusion=comm_fusion, replicate_params=whole)


LLM = Network(
    make=lambda: decoder.decoder(decoder.PLAN),
    batch=lambda seed, rows: decoder.decoder_batch(seed, rows, decoder.PLAN),
    loss=decoder.decoder_loss,
    wrap=_wrap_decoder,
    rows=2,
)

_SMALLER = replace(chunked_cross_entropy.PLAN, vocab=4096)

CHUNKED = Network(
    make=lambda: chunked_cross_entropy.chunked_decoder(chunked_cross_entropy.PLAN, chunked_cross_entropy.CHUNK),
    batch=lambda seed, rows: decoder.decoder_batch(seed, rows, chunked_cross_entropy.PLAN),
    loss=chunked_cross_entropy.chunked_loss,
    wrap=_wrap_chunked,
    rows=5,
)
"""Five rows of 128 tokens are a whole chunk and a short one on each rank."""

SMALL_CHUNKED = replace(
    CHUNKED,
    make=lambda: chunked_cross_entropy.chunked_decoder(_SMALLER, 48),
    batch=lambda seed, rows: decoder.decoder_batch(seed, rows, _SMALLER),
    rows=1,
)
"""An eighth of the words, and a row of 128 tokens in three chunks, the last one shorter: a fraction of the work."""

VIT = Network(
    make=lambda: vit.vit(vit.PLAN),
    batch=lambda seed, rows: vit.vit_batch(seed, rows, vit.PLAN),
    loss=vit.vit_loss,
    wrap=_wrap_vit,
    rows=2,
    rate=vit.RATE,
)

MULTIMODAL = Network(
    make=lambda: multimodal.multimodal(multimodal.PLAN),
    batch=lambda seed, rows: multimodal.multimodal_batch(seed, rows, multimodal.PLAN),
    loss=multimodal.multimodal_loss,
    wrap=_wrap_multimodal,
    rows=2,
)
