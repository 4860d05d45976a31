"""Layouts of inputs and outputs in each kind of pass, and when gradients are added."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.tensor_parallel.networks import divided_mlp, hidden_batches, mesh_of, own_tokens
from hyper_parallel_tests.harness import World, assert_close, assert_equal, contract
from hyper_parallel_tests.models.mlp import mlp

either_way = pytest.mark.parametrize("sequence", [False, True], ids=["whole", "own_tokens"])


def inputs(world: World, sequence: bool, seed: int = 0) -> Tensor:
    whole = hidden_batches(world, 16)[seed].inputs
    return own_tokens(world, whole) if sequence else whole


def expected_output(world: World, sequence: bool, seed: int = 0) -> Tensor:
    output = mlp(16, 2).to(world.device)(hidden_batches(world, 16)[seed].inputs).detach()
    return own_tokens(world, output) if sequence else output


def whole_gradients(world: World, seeds: list[int]) -> dict[str, Tensor]:
    """A single card's, of the sums of the outputs for these inputs."""
    model = mlp(16, 2).to(world.device)
    for seed in seeds:
        model(hidden_batches(world, 16)[seed].inputs).sum().backward()
    return gradients(model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.grad for name, one in model.named_parameters()}


@contract("TP-1-01")
@either_way
def test_entered_twice_before_a_backward(engine, world, ledger, sequence):
    """Two passes over the same layers have each its own output, and gradients of both."""
    model = divided_mlp(engine, world, sequence=sequence)
    outputs = [model(inputs(world, sequence, seed)) for seed in (0, 1)]
    for seed, output in enumerate(outputs):
        assert_close(output.detach(), expected_output(world, sequence, seed), ledger["tp_fp32"], what="output")
    (outputs[0].sum() + outputs[1].sum()).backward()
    assert_close(gradients(model), whole_gradients(world, [0, 1]), ledger["tp_fp32"], what="gradient")


@contract("TP-1-01")
@either_way
@pytest.mark.parametrize("kind", ["no_grad", "inference_mode", "eval"])
def test_passes_that_do_not_train(engine, world, ledger, sequence, kind):
    """They give the same output, and a training pass after them is as before."""
    model = divided_mlp(engine, world, sequence=sequence)
    if kind == "eval":
        model.eval()
        found = model(inputs(world, sequence)).detach()
        model.train()
    else:
        with getattr(torch, kind)():
            found = model(inputs(world, sequence))
    assert not found.requires_grad
    assert_close(found, expected_output(world, sequence), ledger["tp_fp32"], what="output")
    output = model(inputs(world, sequence))
    assert_close(output.detach(), expected_output(world, sequence), ledger["tp_fp32"], what="output")
    output.sum().backward()
    assert_close(gradients(model), whole_gradients(world, [0]), ledger["tp_fp32"], what="gradient")


@contract("TP-1-01")
@either_way
def test_deep_copy(engine, world, ledger, sequence):
    """A copy computes the same with parameters of its own: gradients and updates of the one leave the other alone."""
    model = divided_mlp(engine, world, sequence=sequence)
    twin = copy.deepcopy(model)
    assert [one.placements for one in twin.parameters()] == [one.placements for one in model.parameters()]
    output = twin(inputs(world, sequence))
    assert_close(output.detach(), expected_output(world, sequence), ledger["tp_fp32"], what="output of the copy")
    output.sum().backward()
    assert_close(gradients(twin), whole_gradients(world, [0]), ledger["tp_fp32"], what="gradient of the copy")
    assert {name: one for name, one in gradients(model).items() if one is not None} == {}
    with torch.no_grad():
        for one in twin.parameters():
            one.zero_()
    found = model(inputs(world, sequence)).detach()
    assert_close(found, expected_output(world, sequence), ledger["tp_fp32"], what="output of the original")


@contract("TP-1-01")
@either_way
def test_gradient_is_added_once_a_backward(engine, world, ledger, sequence):
    """Each backward ends with one accumulation for each parameter; two of them make twice the gradient."""
    model = divided_mlp(engine, world, sequence=sequence)
    added = dict.fromkeys(gradients(model), 0)
    for name, one in model.named_parameters():

        def count(_: Tensor, name: str = name) -> None:
            added[name] += 1

        one.register_post_accumulate_grad_hook(count)
    for times in (1, 2):
        model(inputs(world, sequence)).sum().backward()
        assert set(added.values()) == {times}
        assert_close(gradients(model), whole_gradients(world, [0] * times), ledger["tp_fp32"], what="gradient")


@contract("TP-1-01")
def test_input_gradient(engine, world, ledger):
    """The gradient of a whole input is the whole one on each rank, for one consumer or for two."""
    model = divided_mlp(engine, world)
    whole = inputs(world, sequence=False).requires_grad_()
    (model(whole).sum() + model(whole).square().sum()).backward()
    alone = whole.detach().clone().requires_grad_()
    one_card = mlp(16, 2).to(world.device)
    (one_card(alone).sum() + one_card(alone).square().sum()).backward()
    assert_close(whole.grad, alone.grad, ledger["tp_fp32"], what="gradient of the input")


@contract("TP-1-01")
@either_way
def test_alternating_passes(engine, world, ledger, sequence):
    """Passes of other batch sizes in between change nothing for the next."""
    model = divided_mlp(engine, world, sequence=sequence)
    for seed, rows in ((0, 2), (1, 1), (0, 2), (1, 2)):
        found = model(inputs(world, sequence, seed)[:rows]).detach()
        expected = expected_output(world, sequence, seed)[:rows]
        assert_close(found, expected, ledger["tp_fp32"], what="output")


@contract("TP-1-01")
@pytest.mark.parametrize("source", [0, 1, None], ids=["first", "second", "own"])
@pytest.mark.parametrize("path", ["layers.0", ""], ids=["path", "itself"])
def test_whose_parameters_are_taken(engine, world, path, source):
    """The source's, or with none each rank's own, whatever the path."""
    model = mlp(8, 1, seed=world.rank).to(world.device)
    target = model if path else model.layers[0]
    engine.parallelize_module(target, mesh_of(world), {path: engine.ColwiseParallel()}, src_data_rank=source)
    taken = mlp(8, 1, seed=world.rank if source is None else source).layers[0].weight.detach()
    expected = taken.chunk(world.size)[world.rank].to(world.device)
    assert_equal(model.layers[0].weight.detach().to_local(), expected, what="part of the weight")
