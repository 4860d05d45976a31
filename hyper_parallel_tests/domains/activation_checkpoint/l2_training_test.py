"""Training with regions against training without, on the same card or under data parallelism on the same ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.activation_checkpoint.networks import (
    ADDMM,
    DEPTH,
    MM,
    POLICIES,
    SHAPE,
    STEPS,
    batches,
    make_regions,
    network,
    on_all_ranks,
)
from hyper_parallel_tests.domains.activation_checkpoint.setting import REENTRANT, SEED, seeded
from hyper_parallel_tests.harness import (
    World,
    assert_bitwise_repeatable,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.decoder import decoder, decoder_batch, decoder_loss
from hyper_parallel_tests.models.mlp import mlp_loss
from hyper_parallel_tests.models.seeding import Batch

SGD = partial(torch.optim.SGD, lr=0.1)
ADAM = partial(torch.optim.Adam, lr=1e-2, foreach=False)

DECODERS = {"full": (1, {}), "reentrant": (1, REENTRANT), "operators": (1, {"policy_fn": [MM]})}
CASTS = {"full": (1, {}), "reentrant": (1, REENTRANT), "operators": (1, {"policy_fn": [ADDMM]})}
WRITTEN = {
    "full": {"mode": "full"},
    "every_second": {"selective_ac_option": "2"},
    "every_second_reentrant": {"selective_ac_option": "2", "use_reentrant": True},
    "operators": {"selective_ac_option": "op", "op_sac_save_list": ["aten.addmm.default"]},
}


def with_regions(
    world: World, model: nn.Module, rows: list[Batch], loss: Any, regions: Callable[[nn.Module], None], optimizer: Any
) -> Track:
    """Trains a model of which `regions` makes regions; each rank has random numbers of its own."""
    # The names are those without wrappers, and the parameters are the same ones.
    named = dict(model.named_parameters())
    regions(model)
    with seeded(SEED + world.rank):
        return train(on_all_ranks(model), rows, loss, optimizer=optimizer, average=mean_over_ranks, params=named.items)


def without_regions(world: World, model: nn.Module, rows: list[Batch], loss: Any, optimizer: Any) -> Track:
    """The same without a region and without the engine."""
    with seeded(SEED + world.rank):
        return train_baseline(model, rows, loss, wrap=on_all_ranks, optimizer=optimizer, average=mean_over_ranks)


@contract("AC-2-01")
@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize(("every", "options"), POLICIES.values(), ids=POLICIES)
def test_network_with_dropout(engine, world, ledger, every, options, optimizer):
    """With every policy a network with dropout trains bit for bit as without one, and its regions do run again."""
    calls: list[nn.Module] = []

    def regions(model: nn.Module) -> None:
        for block in model.blocks:
            block.up.register_forward_pre_hook(lambda module, _: calls.append(module))
        make_regions(engine, model.blocks, every, **options)

    rows = batches(world)
    candidate = with_regions(world, network(world), rows, mlp_loss, regions, optimizer)
    assert len(calls) == STEPS * (DEPTH + (DEPTH // every if every else 0))
    baseline = without_regions(world, network(world), rows, mlp_loss, optimizer)
    assert_parity(candidate, baseline, ledger["exact"])


@contract("AC-2-01")
@pytest.mark.parametrize("fields", WRITTEN.values(), ids=WRITTEN)
def test_policy_as_written(engine, world, ledger, fields):
    """So it does with policies as users write them."""

    def regions(model: nn.Module) -> None:
        engine.apply_ac(model.blocks, engine.ActivationCheckpointConfig(**fields))

    rows = batches(world)
    candidate = with_regions(world, network(world), rows, mlp_loss, regions, SGD)
    baseline = without_regions(world, network(world), rows, mlp_loss, SGD)
    assert_parity(candidate, baseline, ledger["exact"])


@contract("AC-2-01")
@pytest.mark.parametrize(("every", "options"), DECODERS.values(), ids=DECODERS)
def test_decoder(engine, world, ledger, every, options):
    """So does a decoder, whose blocks get positions too and whose embedding is its output layer."""

    def regions(model: nn.Module) -> None:
        make_regions(engine, model.blocks, every, **options)

    def model() -> nn.Module:
        return decoder(SHAPE).to(world.device)

    whole = [decoder_batch(seed, 2 * world.size, SHAPE) for seed in range(STEPS)]
    rows = [one.part(world.rank, world.size).to(world.device) for one in whole]
    candidate = with_regions(world, model(), rows, decoder_loss, regions, SGD)
    assert_parity(candidate, without_regions(world, model(), rows, decoder_loss, SGD), ledger["exact"])


def loss_in_bf16(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error of a model that computes under autocast."""
    with torch.autocast(batch.inputs.device.type, torch.bfloat16):
        output = model(batch.inputs)
    return F.mse_loss(output.float(), batch.targets)


@contract("AC-2-01")
@pytest.mark.parametrize(("every", "options"), CASTS.values(), ids=CASTS)
def test_under_autocast(engine, world, ledger, every, options):
    """So does the network under autocast, whose backward runs outside of it."""

    def regions(model: nn.Module) -> None:
        make_regions(engine, model.blocks, every, **options)

    rows = batches(world)
    candidate = with_regions(world, network(world), rows, loss_in_bf16, regions, SGD)
    baseline = without_regions(world, network(world), rows, loss_in_bf16, SGD)
    assert_parity(candidate, baseline, ledger["exact"])


@contract("AC-2-01")
@pytest.mark.parametrize(("every", "options"), [POLICIES["full"], POLICIES["operators"]], ids=["full", "operators"])
def test_repeated(engine, world, every, options):
    """Two runs in one process are equal bit for bit."""

    def run() -> Track:
        return with_regions(
            world,
            network(world),
            batches(world),
            mlp_loss,
            lambda model: make_regions(engine, model.blocks, every, **options),
            SGD,
        )

    assert_bitwise_repeatable(run)
