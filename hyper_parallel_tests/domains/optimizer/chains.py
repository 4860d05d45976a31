"""Both optimizers of a model, trained for a while."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hyper_parallel_tests.domains.optimizer.network import ADAMW, MUON, Network, batch, loss, network


def chained(engine: Any, model: nn.Module, **options: Any) -> Any:
    """Both optimizers of a model."""
    return engine.get_hyper_optimizer(model, **({"muon": MUON, "adamw": ADAMW} | options))


def steps(model: Network, chain: Any, *seeds: int) -> None:
    """Trains a step for each seed."""
    for seed in seeds:
        chain.zero_grad()
        loss(model, batch(seed)).backward()
        chain.step()


def tensors(state_dict: dict[str, Any]) -> dict[str, Tensor]:
    return {key: value for key, value in state_dict.items() if isinstance(value, Tensor)}


def trained_chain(engine: Any) -> tuple[Network, Any]:
    """A network and its optimizers after two steps."""
    model = network(tied=True)
    chain = chained(engine, model)
    steps(model, chain, 0, 1)
    return model, chain
