"""Attention whose heads are divided by tensor parallelism and whose sequence by context parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyper_parallel_tests.harness import (
    World,
    assert_close,
    assert_parity,
    contract,
    in_clean_process,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.interactions.attention import (
    Layers,
    batches,
    each_style,
    each_way,
    loss,
    optimizer,
    outputs,
    part,
    whole,
    with_divided_heads,
    with_divided_sequence,
)
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario

HERE = scenario("IX-05")


class Setting:
    """The layers, divided, and this rank's tokens of what they are given."""

    def __init__(self, engine: Any, world: World, style: str, asynchronous: bool) -> None:
        mesh = HERE.mesh(world)
        self.engine, self.cp, self.place = engine, mesh["cp"], mesh.get_local_rank("cp")
        model = with_divided_heads(engine, mesh["tp"], whole(world))
        self.model: Layers = with_divided_sequence(engine, self.cp, model, style, asynchronous=asynchronous)
        self.rows = [part(one, self.place, self.cp.size()) for one in batches(world)]
        self.loss = partial(loss, rank=self.place, size=self.cp.size())

    def average_gradients(self, model: nn.Module) -> None:
        """Over the ranks that divide the sequence."""
        for param in model.parameters():
            local = param.grad.to_local()
            self.engine.all_reduce(local, group=self.cp.get_group())
            local /= self.cp.size()


@contract("IX-05")
@each_style
@each_way
def test_trains_as_a_single_card_does(engine, world, ledger, style, asynchronous):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    here = Setting(engine, world, style, asynchronous)
    candidate = train(
        here.model,
        here.rows,
        here.loss,
        optimizer=optimizer,
        average=mean_over_ranks,
        before_update=here.average_gradients,
    )
    baseline = train_baseline(whole(world), batches(world), loss, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["cp_tp_fp32"])


def hold_back_the_last(here: Setting, world: World) -> None:
    """Has the rank with the last tokens begin when the one with the first has come to its attention."""
    first, last = dist.get_process_group_ranks(here.cp.get_group())
    token, layer = torch.zeros(1, device=world.device), here.model.layers[0]

    def wait(*_: object) -> None:
        here.engine.recv(token, src=first)

    def release(*_: object) -> None:
        here.engine.send(token, dst=last)

    if world.rank == last:
        layer.q.register_forward_pre_hook(wait)
    else:
        # Before the engine's hook, which waits for the transfers.
        layer.core.register_forward_pre_hook(release, prepend=True)


@contract("IX-05")
@each_style
@each_way
def test_output_is_that_of_this_ranks_tokens(engine, world, ledger, style, asynchronous):
    """The attention's output, and with it the gradient of its input, are the single card's at this rank's tokens.

    With transfers beside the projections a rank is through with these while the other has not begun.
    """
    here = Setting(engine, world, style, asynchronous)
    if asynchronous:
        hold_back_the_last(here, world)
    found = outputs(here.model, here.rows[0], here.place, here.cp.size())
    expected: dict[str, Tensor] = in_clean_process(outputs, whole(world), batches(world)[0])
    mine = {name: one.chunk(here.cp.size(), 1)[here.place] for name, one in expected.items()}
    assert_close(found, mine, ledger["cp_tp_fp32"], what="attention")


@contract("IX-05")
@each_style
@each_way
def test_life_cycle_is_closed(engine, world, style, asynchronous):
    """After a step no transfer is under way, no hook is left and nothing has grown."""
    here = Setting(engine, world, style, asynchronous)
    update = optimizer(here.model.parameters())

    def backward():
        here.loss(here.model, here.rows[0]).backward()
        here.average_gradients(here.model)

    assert_closed(backward, update, here.model)
