"""The network that the cases train, whose optimizer each parameter is, and what a single card makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.seeding import Batch, build, generator

# Odd, so that shards are uneven; even where tensor parallelism divides features.
ODD, EVEN = (5, 7), (4, 8)
VOCAB, ROWS, STEPS = 6, 8, 3

MUON = {"lr": 0.02, "weight_decay": 0.1}
ADAMW = {"lr": 0.01, "weight_decay": 0.1}


class Network(nn.Module):
    """Tokens (rows,) -> logits (rows, VOCAB), with a parameter of every kind.

    `frozen` is used and not trained; `unused` is trainable and never used, so that it has no gradient; `gate` has one
    row, so that all ranks but one have none of it.
    """

    def __init__(self, width: int, inner: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.gate = nn.Linear(width, 1)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.unused = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, VOCAB, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        hidden = hidden + self.down(torch.tanh(self.up(hidden))) * torch.sigmoid(self.gate(hidden))
        return self.output(self.norm(hidden + self.frozen(hidden)))


MATRICES = ("up.weight", "down.weight", "gate.weight", "unused.weight")
"""What is Muon's."""

UNDECAYED = ("up.bias", "down.bias", "gate.bias", "unused.bias")
"""What AdamW does not decay."""


def network(
    sizes: tuple[int, int] = ODD,
    *,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Network:
    """On one card, with the same weights each time."""
    return build(lambda: Network(*sizes, tied), 0).to(device, dtype)


def batch(seed: int) -> Batch:
    """Tokens and those that are to follow them, for all ranks, the same on each."""
    tokens = torch.randint(VOCAB, (2, ROWS), generator=generator(seed, "optimizer"))
    return Batch(tokens[0], tokens[1])


def batches(world: World, steps: int = STEPS) -> list[Batch]:
    """One batch a step."""
    return [batch(seed).to(world.device) for seed in range(steps)]


def loss(model: nn.Module, rows: Batch) -> Tensor:
    """The mean over equal parts is the whole's."""
    return F.cross_entropy(model(rows.inputs), rows.targets)


class Both:
    """PyTorch's own optimizers one after the other: what a chain is held to."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    def step(self) -> None:
        for one in self.optimizers:
            one.step()


def muon_on_one_card(parameters: Iterable[Any], **options: Any) -> torch.optim.Optimizer:
    """PyTorch's, with the step's size of the port."""
    return torch.optim.Muon(parameters, adjust_lr_fn="match_rms_adamw", **options)


def both_on_one_card(
    parameters: Iterable[Tensor],
    names: Sequence[str],
    muon: Mapping[str, Any] | None = MUON,
    adamw: Mapping[str, Any] = ADAMW,
) -> Both:
    """Each of a network's parameters to its optimizer, by the names above.

    Args:
        names: of the parameters, in their order.
        muon: None for AdamW alone.
    """
    named = {name: one for name, one in zip(names, parameters, strict=True) if one.requires_grad}
    own = () if muon is None else MATRICES
    matrices = [one for name, one in named.items() if name in own]
    decayed = [one for name, one in named.items() if name not in (*own, *UNDECAYED)]
    undecayed = [one for name, one in named.items() if name in UNDECAYED]
    by_adamw = torch.optim.AdamW([{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}], **adamw)
    return Both(by_adamw) if muon is None else Both(by_adamw, muon_on_one_card(matrices, **muon))


def train_on_one_card(
    model: Network,
    rows: list[Batch],
    *,
    muon: Mapping[str, Any] | None = MUON,
    adamw: Mapping[str, Any] = ADAMW,
    loss: Callable[[nn.Module, Batch], Tensor] = loss,
    **options: Any,
) -> Track:
    """Trains the whole model on one card with PyTorch's optimizers.

    Args:
        muon, adamw: as for `both_on_one_card`.
        options: those of `train`.
    """
    names = [name for name, _ in model.named_parameters()]
    make = partial(both_on_one_card, names=names, muon=muon, adamw=adamw)
    return train_baseline(model, rows, loss, optimizer=make, **options)
