"""Networks of layers that can be regions, and how a user makes regions of some of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hyper_parallel_tests.domains.activation_checkpoint.setting import REENTRANT, SEED
from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.decoder import DecoderShape
from hyper_parallel_tests.models.mlp import mlp_batch
from hyper_parallel_tests.models.seeding import Batch, build

WIDTH, INNER, DEPTH, ROWS, STEPS = 8, 32, 4, 8, 2
SHAPE = DecoderShape(vocab=16, hidden=16, layers=2, heads=4, kv_heads=2, ffn=24, seq=8, tied=True)

ADDMM, MM = torch.ops.aten.addmm.default, torch.ops.aten.mm.default

# Which of the layers are regions (every nth, 0 for none), and of what kind.
POLICIES: dict[str, tuple[int, dict[str, Any]]] = {
    "none": (0, {}),
    "full": (1, {}),
    "full_reentrant": (1, REENTRANT),
    "every_second": (2, {}),
    "every_third_reentrant": (3, REENTRANT),
    "operators": (1, {"policy_fn": [ADDMM]}),
}


class Block(nn.Module):
    """A feed-forward with dropout inside, added to its input; (rows, WIDTH) in and out."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(self.dropout(F.gelu(self.up(hidden))))


class Network(nn.Module):
    """A linear layer, so that the first block's input wants a gradient, then blocks, then a linear layer."""

    def __init__(self, dropout: float, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(depth))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(through(self.blocks, self.first(inputs)))


def through(blocks: nn.ModuleList, hidden: Tensor, *others: Tensor) -> Tensor:
    """What comes out of blocks one after the other, which all get `others` too."""
    for block in blocks:
        hidden = block(hidden, *others)
    return hidden


def network(world: World, *, dropout: float = 0.25, depth: int = DEPTH) -> Network:
    """The network with the same weights each time."""
    return build(lambda: Network(dropout, depth), SEED).to(world.device)


def batches(world: World) -> list[Batch]:
    """This rank's rows of each step."""
    whole = [mlp_batch(seed, ROWS * world.size, WIDTH) for seed in range(STEPS)]
    return [one.part(world.rank, world.size).to(world.device) for one in whole]


def make_regions(engine: Any, blocks: nn.ModuleList, every: int, **options: Any) -> None:
    """Makes regions of every nth block, counted from one, as users do who have the engine's wrapper alone."""
    for number, (name, block) in enumerate(list(blocks.named_children()), start=1):
        if every and number % every == 0:
            blocks.register_module(name, engine.checkpoint_wrapper(block, **options))


def on_all_ranks(model: nn.Module) -> nn.Module:
    """The model under data parallelism, with averaged gradients; alone on a single card."""
    return DistributedDataParallel(model) if torch.distributed.get_world_size() > 1 else model
