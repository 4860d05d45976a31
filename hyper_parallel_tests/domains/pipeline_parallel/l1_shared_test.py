"""A parameter that two stages have: the embedding of a decoder, tied to its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import KINDS, Kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import WIDTH, Part, sgd, whole_network
from hyper_parallel_tests.domains.pipeline_parallel.setting import Pipeline, pipeline
from hyper_parallel_tests.harness import (
    World,
    assert_close,
    assert_equal,
    assert_parity,
    contract,
    in_clean_process,
    trace,
    train_baseline,
)
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch, decoder_loss
from hyper_parallel_tests.models.mlp import mlp_batch
from hyper_parallel_tests.models.seeding import Batch

SHAPE = DecoderShape(vocab=11, hidden=8, layers=2, heads=2, kv_heads=1, ffn=8, seq=4, tied=True)
SHARED = [one for one in KINDS if one != "csv"]
each_kind = pytest.mark.parametrize("kind", [KINDS[one] for one in SHARED], ids=SHARED)
SINGLE = ["gpipe", "1f1b"]
each_single_kind = pytest.mark.parametrize("kind", [KINDS[one] for one in SINGLE], ids=SINGLE)


class DecoderPart(nn.Module):
    """Of a decoder of one block a stage: the embedding is in the first one, norm and output in the last one.

    The output's weight is a copy of its own, which no value was given to yet.
    """

    def __init__(self, shape: DecoderShape, index: int, share: float) -> None:
        super().__init__()
        whole = decoder(shape)
        self._share, self._index, self._is_last = share, index, index == shape.layers - 1
        if index == 0:
            self.embedding = whole.embedding
        self.blocks = nn.ModuleDict({str(index): whole.blocks[index]})
        if self._is_last:
            self.norm = whole.norm
            self.output = nn.Linear(shape.hidden, shape.vocab, bias=False)
            nn.init.constant_(self.output.weight, float("nan"))

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        hidden = self.embedding(inputs) if self._index == 0 else inputs
        for block in self.blocks.values():
            hidden = block(hidden, torch.arange(hidden.shape[1], device=hidden.device))
        if not self._is_last:
            return hidden
        logits = self.output(self.norm(hidden))
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten()) * self._share

    @property
    def tied(self) -> nn.Parameter | None:
        """This stage's copy of the weight."""
        return self.embedding.weight if self._index == 0 else self.output.weight if self._is_last else None


class Tied(Pipeline):
    """A pipeline of a tied decoder, whose parameters have the names of the whole one's."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name.replace("output.", "embedding."), one) for name, one in super().named_parameters())

    def gradients(self) -> dict[str, Tensor]:
        """The copy of the last stage is not counted twice."""
        counted = {id(module.tied) for index, module in self.modules.items() if index and module.tied is not None}
        return {
            name: one.grad for name, one in self.named_parameters() if id(one) not in counted and one.grad is not None
        }

    def copies(self) -> dict[int, nn.Parameter]:
        return {index: module.tied for index, module in self.modules.items() if module.tied is not None}


def shape_of(kind: Kind, world: World) -> DecoderShape:
    return dataclasses.replace(SHAPE, layers=kind.stage_num(world.size))


def tied_pipeline(engine: Any, world: World, kind: Kind, folder: Path, frozen: bool = False) -> Tied:
    shape = shape_of(kind, world)
    modules = [DecoderPart(shape, index, 1 / 4).to(world.device) for index in kind.stages_of(world.rank, world.size)]
    for module in modules:
        if module.tied is not None and frozen:
            module.tied.requires_grad_(False)
    shared = [0, shape.layers - 1]
    infos = [None if one.tied is None else engine.SharedParameterInfo(one.tied, shared) for one in modules]
    made = pipeline(
        engine, world, kind, folder, modules=modules, each_stage=[{"shared_parameters": one} for one in infos]
    )
    return Tied(world, made.modules, shape.layers, made.schedule)


def batches(world: World, kind: Kind) -> list[Batch]:
    return [decoder_batch(seed, rows=4, shape=shape_of(kind, world)).to(world.device) for seed in range(2)]


def whole(world: World, kind: Kind) -> nn.Module:
    return decoder(shape_of(kind, world)).to(world.device)


@contract("PP-1-03")
@each_kind
def test_gradient_is_the_sum(engine, world, artifacts, ledger, kind):
    """After a pass each copy has the sum of the gradients of both, as one weight has on a single card."""
    piped, given = tied_pipeline(engine, world, kind, artifacts), batches(world, kind)[:1]
    piped.run(given[0])
    expected = train_baseline(whole(world, kind), given, decoder_loss).steps[0].grads["embedding.weight"]
    for index, one in piped.copies().items():
        assert_close(one.grad, expected, ledger["pp_fp32"], what=f"gradient of the copy of stage {index}")


@contract("PP-1-03")
@each_kind
def test_gradients_of_two_passes(engine, world, artifacts, ledger, kind):
    """What one pass has summed the next one does not sum again."""
    piped, given = tied_pipeline(engine, world, kind, artifacts), batches(world, kind)
    for batch in given:
        piped.run(batch)
    steps = train_baseline(whole(world, kind), given, decoder_loss).steps
    expected = sum(step.grads["embedding.weight"] for step in steps)
    for index, one in piped.copies().items():
        assert_close(one.grad, expected, ledger["pp_fp32"], what=f"gradient of the copy of stage {index}")


@contract("PP-1-03")
@each_kind
def test_training(engine, world, artifacts, ledger, kind):
    """The copies start with the first stage's values, train as one weight does, and stay equal to the last bit."""
    piped, given = tied_pipeline(engine, world, kind, artifacts), batches(world, kind)
    baseline = train_baseline(whole(world, kind), given, decoder_loss, optimizer=sgd)
    candidate = piped.train(given, sgd)
    # The last stage's copy had no values yet when the start was recorded.
    start = {name: one for name, one in baseline.start.items() if name in candidate.start}
    assert_parity(dataclasses.replace(candidate, start=start), baseline.only(piped.names()), ledger["pp_fp32"])
    first = torch.empty(SHAPE.vocab, SHAPE.hidden, device=world.device)
    if piped.is_first:
        first.copy_(piped.copies()[0].detach())
    dist.broadcast(first, 0)
    for index, one in piped.copies().items():
        assert_equal(one.detach(), first, what=f"the copy of stage {index}")


@contract("PP-1-03")
@each_single_kind
def test_sum_comes_once_and_last(engine, world, artifacts, kind):
    """In a pass gradients of the weight's size are exchanged once, after all activations."""
    piped, batch = tied_pipeline(engine, world, kind, artifacts), batches(world, kind)[0]
    piped.run(batch)
    with trace.collectives() as sent:
        piped.run(batch)
    size = SHAPE.vocab * SHAPE.hidden
    floats = [one for one in sent if one.dtype == "float32" and one.op != "recv"]
    shared = [one for one in floats if one.bytes == size * 4]
    assert len(shared) == len(piped.copies())
    assert floats[len(floats) - len(shared) :] == shared


@contract("PP-1-03")
@each_single_kind
def test_frozen(engine, world, artifacts, ledger, kind):
    """A shared parameter that is frozen has the first stage's values, and no gradient."""
    piped, given = tied_pipeline(engine, world, kind, artifacts, frozen=True), batches(world, kind)
    piped.run(given[0])
    expected = whole(world, kind).embedding.weight.detach()
    for one in piped.copies().values():
        assert_equal(one.detach(), expected, what="the copy")
        assert one.grad is None


class Bent(nn.Module):
    """A stage whose inputs are scaled and shifted first, by parameters that the last stage gets from the first one."""

    def __init__(self, part: Part, has_values: bool) -> None:
        super().__init__()
        self.part = part
        self.bends = nn.ParameterList(bends() if has_values else [torch.full_like(one, torch.nan) for one in bends()])

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        scale, shift = self.bends
        return self.part(inputs * scale + shift, targets)


def bends() -> list[Tensor]:
    """A scale and a shift."""
    return [torch.linspace(0.5, 1.5, WIDTH), torch.linspace(-0.5, 0.5, WIDTH)]


def gradients_of_bends(model: nn.Module, batch: Batch) -> list[Tensor]:
    """On a single card, of scale and shift before the first layer and the last one."""
    scale, shift = (one.to(batch.inputs.device).requires_grad_() for one in bends())
    hidden, last = batch.inputs, len(model.layers) - 1
    for index, layer in enumerate(model.layers):
        bent = hidden * scale + shift if index in (0, last) else hidden
        hidden = layer(torch.tanh(bent) if index else bent)
    F.mse_loss(hidden, batch.targets).backward()
    return [scale.grad, shift.grad]


@contract("PP-1-03")
@each_single_kind
def test_two_parameters_of_the_same_stages(engine, world, artifacts, ledger, kind):
    """Two parameters of one shape that the same stages share are told apart, in their values and their gradients."""
    network, last, batch = whole_network(world, world.size), world.size - 1, mlp_batch(0, 8, WIDTH).to(world.device)
    module: nn.Module = Part(network, range(world.rank, world.rank + 1), share=1 / 4)
    shared = None
    if world.rank in (0, last):
        module = Bent(module, has_values=world.rank == 0).to(world.device)
        shared = [engine.SharedParameterInfo(one, [0, last]) for one in module.bends]
    piped = pipeline(engine, world, kind, artifacts, modules=[module], each_stage=[{"shared_parameters": shared}])
    piped.run(batch)
    expected = in_clean_process(gradients_of_bends, whole_network(world, world.size), batch)
    for found in [list(module.bends)] if shared else []:
        values = [one.to(world.device) for one in bends()]
        assert_equal([one.detach() for one in found], values, what="scale and shift")
        assert_close([one.grad for one in found], expected, ledger["pp_fp32"], what="gradients of scale and shift")


class Shifted(nn.Module):
    """A stage that shifts its inputs by a parameter, if it uses it."""

    def __init__(self, part: Part, shift: nn.Parameter | None, uses: bool) -> None:
        super().__init__()
        self.part, self.shift, self._uses = part, shift, uses

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        return self.part(inputs + self.shift if self._uses else inputs, targets)


def gradient_of_shift(model: nn.Module, batch: Batch, stages: list[int]) -> Tensor:
    """On a single card, of a shift before the layers of `stages`."""
    shift = bends()[1].to(batch.inputs.device).requires_grad_()
    hidden = batch.inputs
    for index, layer in enumerate(model.layers):
        hidden = hidden + shift if index in stages else hidden
        hidden = layer(torch.tanh(hidden) if index else hidden)
    F.mse_loss(hidden, batch.targets).backward()
    return shift.grad


@contract("PP-1-03")
@pytest.mark.parametrize("tied", [False, True], ids=["a_copy_each", "one_for_both_stages_of_a_rank"])
def test_many_copies(engine, world, artifacts, ledger, tied):
    """Of more than two stages all get the values of the one named first, and the sum of all, also if one has none."""
    kind, stage_num, batch = KINDS["interleaved"], 2 * world.size, mlp_batch(0, 8, WIDTH).to(world.device)
    # The first and the second are of one rank; the last one does not use its copy.
    shared = [world.size + 1, 1, 0, 2]
    whole, modules, own = whole_network(world, stage_num), [], None
    for index in kind.stages_of(world.rank, world.size):
        if own is None or not tied:
            own = nn.Parameter(bends()[1] if index == shared[0] or (tied and index == 1) else torch.full((WIDTH,), 9.0))
        part = Part(whole, range(index, index + 1), share=1 / 4)
        modules.append(Shifted(part, own if index in shared else None, index in shared[:3]).to(world.device))
    infos = [None if one.shift is None else engine.SharedParameterInfo(one.shift, shared) for one in modules]
    piped = pipeline(
        engine, world, kind, artifacts, modules=modules, each_stage=[{"shared_parameters": one} for one in infos]
    )
    piped.run(batch)
    expected = in_clean_process(gradient_of_shift, whole_network(world, stage_num), batch, shared[:3])
    for index, module in piped.modules.items():
        if index in shared:
            assert_equal(module.shift.detach(), bends()[1].to(world.device), what=f"the copy of stage {index}")
            assert module.shift.grad is not None, f"the copy of stage {index} has no gradient"
            assert_close(module.shift.grad, expected, ledger["pp_fp32"], what=f"gradient of the copy of stage {index}")


@contract("PP-1-03")
def test_what_can_be_shared(engine):
    """Only a parameter can be shared, and stages are told as a list or tuple."""
    with pytest.raises(TypeError):
        engine.SharedParameterInfo(torch.zeros(2), [0, 1])
    with pytest.raises(TypeError):
        engine.SharedParameterInfo(nn.Parameter(torch.zeros(2)), 1)
