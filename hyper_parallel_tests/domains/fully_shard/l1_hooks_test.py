"""When parameters are gathered and resharded around a module's forward."""

from __future__ import annotations

import torch
from torch import nn

from hyper_parallel_tests.domains.fully_shard.setting import either_fusion
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process, trace


class Scale(nn.Module):
    """Multiplies by a weight matrix and a factor, and notes whether the weight was full while it ran."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(features * features, dtype=torch.float32).view(features, features))
        self.seen: list[str] = []

    def is_full(self) -> bool:
        """Whether the registered weight is a plain tensor with memory behind it, not a shard."""
        return type(self.weight) is nn.Parameter and self.weight.untyped_storage().nbytes() > 0

    def note(self, where: str) -> None:
        """Adds where we are and what the weight is."""
        self.seen.append(f"{where}: {'full' if self.is_full() else 'shard'}")

    def forward(self, inputs: torch.Tensor, *, factor: torch.Tensor | None = None) -> torch.Tensor:
        self.note("forward")
        # Without its weight the module still ends, so that a case can tell what it saw.
        outputs = inputs @ self.weight if self.is_full() else inputs
        return outputs if factor is None else outputs * factor


def noting(module: Scale, where: str):
    """A hook of any kind that notes what the weight is and changes nothing."""
    return lambda *_: module.note(where)


@contract("FS-1-01")
@either_fusion
def test_gather_comes_before_forward_and_reshard_after_it(engine, world, comm_fusion):
    """The gather lies between prepended and other pre-hooks, the reshard between earlier and later hooks."""
    module = Scale(4).to(world.device)
    module.register_forward_pre_hook(noting(module, "earlier pre-hook"))
    module.register_forward_hook(noting(module, "earlier hook"))
    engine.fully_shard(module, mesh=world.mesh(dp=world.size), comm_fusion=comm_fusion)
    module.register_forward_pre_hook(noting(module, "prepended pre-hook"), prepend=True)
    module.register_forward_pre_hook(noting(module, "later pre-hook"))
    module.register_forward_hook(noting(module, "later hook"))
    module(torch.ones(2, 4, device=world.device))
    assert module.seen == [
        "prepended pre-hook: shard",
        "earlier pre-hook: full",
        "later pre-hook: full",
        "forward: full",
        "earlier hook: full",
        "later hook: shard",
    ]


@contract("FS-1-01")
def test_inputs_by_keyword_alone_gather_too(engine, world, ledger):
    """A call with keyword inputs only gathers, computes with the full weight, and reshards."""
    module, plain = Scale(4).to(world.device), Scale(4).to(world.device)
    engine.fully_shard(module, mesh=world.mesh(dp=world.size))
    inputs = torch.ones(2, 4, device=world.device)
    factor = torch.full((4,), 2.0, device=world.device)
    outputs = module(inputs=inputs, factor=factor)
    assert module.seen == ["forward: full"]
    expected = in_clean_process(plain, inputs=inputs, factor=factor)
    assert_close(outputs, expected, ledger["fsdp_1d_fp32"], what="output")
    module.note("after the call")
    assert module.seen[-1] == "after the call: shard"


@contract("FS-1-01")
def test_gradient_reaches_inputs_by_keyword(engine, world, ledger):
    """Backward through a call by keyword gathers again, reduces, and gives the inputs their gradients."""
    module, plain = Scale(4).to(world.device), Scale(4).to(world.device)
    engine.fully_shard(module, mesh=world.mesh(dp=world.size))
    # Other inputs on each rank: with equal ones a gradient that nobody reduced would be right too.
    inputs = [torch.full((2, 4), 1.0 + rank, device=world.device, requires_grad=True) for rank in range(world.size)]
    value = module(inputs=inputs[world.rank]).square().sum()
    with trace.collectives() as sent:
        value.backward()
    assert sent.ops() == ["all_gather", "reduce_scatter"]
    of_inputs, of_weight = in_clean_process(gradients_of_squares, plain, inputs)
    own = inputs[world.rank].grad
    assert_close(own, of_inputs[world.rank], ledger["fsdp_1d_fp32"], what="gradient of the input")
    assert_close(module.weight.grad, of_weight / world.size, ledger["fsdp_1d_fp32"], what="gradient of the weight")


def gradients_of_squares(module: Scale, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Gradients of each input, and the weight's of all together."""
    for one in inputs:
        module(inputs=one).square().sum().backward()
    return [one.grad for one in inputs], module.weight.grad
