"""A validation between backward and update, in stages that are divided by tensor and context parallelism."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyper_parallel_tests.harness import (
    World,
    assert_close,
    assert_equal,
    assert_parity,
    contract,
    in_clean_process,
    train,
)
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.interactions.decoder_stages import (
    MICRO_BATCHES,
    SHAPE,
    STEPS,
    batches,
    loss,
    optimizer,
    piped,
    whole,
)
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.pipelines import Pipeline
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder_layouts import lay_out
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-18")
# Each rank has some heads, which it exchanges for tokens.
HEADED = dataclasses.replace(SHAPE, kv_heads=SHAPE.heads)
SEED = 7


def all_batches(world: World) -> list[Batch]:
    """One a step, and one to validate with."""
    return batches(world, HEADED, STEPS + 1)


class Setting:
    """This rank's stage and tokens.

    Args:
        dropout: behind each feed-forward, of a stage in training.
        validates: whether there is a validation in each step.

    Attributes:
        losses: of the validations.
    """

    def __init__(self, engine: Any, world: World, *, dropout: float = 0.0, validates: bool = True) -> None:
        mesh = HERE.mesh(world)
        self.engine, self.cp, self._validates = engine, mesh["cp"], validates
        place = mesh.get_local_rank("cp")
        *self.given, self._held_out = [
            Batch(*(tokens.chunk(HERE.dims["cp"], 1)[place] for tokens in one)) for one in all_batches(world)
        ]
        laid = lay_out(engine, whole(world, HEADED), mesh, micro_batches=MICRO_BATCHES)
        divided = engine.ContextParallel(seq_dim=2, head_dim=1)
        first = place * HEADED.seq // HERE.dims["cp"]
        for block in laid.model.blocks.values():
            divided.apply(block.attention.core, self.cp)
            block.register_forward_pre_hook(lambda _, args: (args[0], args[1] + first))
            block.ffn.register_forward_hook(lambda ffn, _, output: F.dropout(output, dropout, ffn.training))
        self.pipeline: Pipeline = piped(engine, mesh, laid)
        self.losses: list[float] = []

    def train(self) -> Track:
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            return self.pipeline.train(self.given, optimizer=optimizer, before_update=self.before_update)

    def before_update(self, model: nn.Module) -> float:
        """Gives the norm of the gradients, averaged over the ranks that divide the sequence."""
        for one in model.parameters():
            local = one.grad.to_local() if hasattr(one.grad, "to_local") else one.grad
            self.engine.all_reduce(local, group=self.cp.get_group())
            local /= self.cp.size()
        norm = self.pipeline.norm(model)
        if self._validates:
            self.losses.append(self.validate())
        return norm

    def validate(self) -> float:
        """The loss of a batch that is not trained with."""
        state = torch.get_rng_state()
        self.pipeline.model.eval()
        with torch.no_grad():
            found = self.pipeline.loss(self.pipeline.model, self._held_out)
        self.pipeline.model.train()
        assert_equal(torch.get_rng_state(), state, what="the random state")
        return float(found)


def on_one_card(model: nn.Module, given: list[Batch]) -> tuple[Track, list[float]]:
    """The run, and the losses of its validations."""
    *given, held_out = given
    losses: list[float] = []

    def validate(model: nn.Module) -> None:
        with torch.no_grad():
            losses.append(float(loss(model, held_out)))

    return train(model, given, loss, optimizer=optimizer, before_update=validate), losses


@contract("IX-18")
def test_validates_and_trains_as_a_single_card_does(engine, world, ledger):
    """Losses of validations are the single card's; so are loss, norm, gradients and parameters of the three steps."""
    here = Setting(engine, world)
    candidate = here.train()
    baseline, losses = in_clean_process(on_one_card, whole(world, HEADED), all_batches(world))
    assert_close(here.losses, losses, ledger["cp_tp_fp32"], what="loss of the validation before update")
    assert_parity(candidate, baseline.only(here.pipeline.params), ledger["cp_tp_fp32"])


@contract("IX-18")
def test_goes_on_as_if_it_had_not_been(engine, world, ledger):
    """With dropout, a run with validations is bit by bit the run without: their gradients and random numbers too."""
    runs = {one: Setting(engine, world, dropout=0.3, validates=one).train() for one in (True, False)}
    assert_parity(runs[True], runs[False], ledger["exact"], own_because="the same engine with and without validations")


@contract("IX-18")
def test_life_cycle_is_closed(engine, world):
    """After a step with a validation no message is under way, no hook is left and nothing has grown."""
    here = Setting(engine, world)

    def backward():
        here.pipeline.run(here.given[0])
        here.before_update(here.pipeline.model)

    assert_closed(backward, optimizer(here.pipeline.model.parameters()), here.pipeline.model)
