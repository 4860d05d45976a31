"""Weights and data come from the seed alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.models.chunked_cross_entropy import chunked_decoder
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.mlp import mlp, mlp_batch
from hyper_parallel_tests.models.multimodal import multimodal, multimodal_batch
from hyper_parallel_tests.models.seeding import Batch, generator, initialise
from hyper_parallel_tests.models.vit import vit, vit_batch

MAKE = {
    "mlp": lambda seed: dict(mlp(seed=seed).state_dict()),
    "decoder": lambda seed: dict(decoder(seed=seed).state_dict()),
    "chunked_decoder": lambda seed: dict(chunked_decoder(seed=seed).state_dict()),
    "vit": lambda seed: dict(vit(seed=seed).state_dict()),
    "multimodal": lambda seed: dict(multimodal(seed=seed).state_dict()),
    "mlp_batch": lambda seed: mlp_batch(seed)._asdict(),
    "decoder_batch": lambda seed: decoder_batch(seed)._asdict(),
    "vit_batch": lambda seed: vit_batch(seed)._asdict(),
    "multimodal_batch": lambda seed: multimodal_batch(seed)._asdict(),
}


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("what", MAKE)
def test_one_seed_gives_one_result(what):
    """The same seed gives the same bits, another seed others."""
    assert same(MAKE[what](3), MAKE[what](3))
    assert not same(MAKE[what](3), MAKE[what](4))


@pytest.mark.parametrize("what", MAKE)
def test_the_global_random_state_neither_matters_nor_moves(what):
    """Whatever was drawn before, the result is the same; what is drawn after is as if nothing was made."""
    torch.manual_seed(1)
    first, after_first = MAKE[what](0), torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(2), after_first)
    assert same(MAKE[what](0), first)


def test_a_part_starts_as_in_the_whole():
    """A parameter's values depend on its name and not on what else there is, as a pipeline stage needs."""
    whole = mlp(depth=3)
    first = nn.Module()
    first.layers = nn.ModuleList([nn.Linear(16, 16)])
    initialise(first, seed=0)
    assert torch.equal(first.layers[0].weight, whole.layers[0].weight)
    assert torch.equal(first.layers[0].bias, whole.layers[0].bias)


def test_no_value_hides_an_error():
    """No bias is zero, no norm's weight is one, no two parameters of one shape are equal."""
    params = dict(decoder(DecoderShape(tied=False)).named_parameters()) | dict(mlp().named_parameters())
    params |= dict(vit().named_parameters())
    for name, param in params.items():
        assert not (param == (1 if "norm" in name else 0)).any(), name
    names = list(params)
    for i, name in enumerate(names):
        assert not any(torch.equal(params[name], params[other]) for other in names[:i]), name


def test_streams_differ_by_name_and_seed():
    """Neither another name nor another seed, also a large or neighbouring one, draws the same numbers."""
    drawn = [torch.rand(4, generator=generator(seed, name)) for seed in (0, 1, 2**31) for name in ("", "a", "b")]
    assert len({tuple(one.tolist()) for one in drawn}) == len(drawn)


def test_parts_of_a_batch_are_the_batch():
    """The parts of all ranks in order are the whole batch, inputs with their targets."""
    batch = mlp_batch(0, rows=6)
    parts = [batch.part(rank, 3) for rank in range(3)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)


def test_rows_that_do_not_divide_are_refused():
    """Unequal parts would make the mean over ranks another than the batch's."""
    with pytest.raises(ValueError, match="6 rows do not divide among 4 ranks"):
        mlp_batch(0, rows=6).part(0, 4)


def test_a_batch_moves_as_one():
    """Both halves go to the device."""
    moved = Batch(torch.ones(2), torch.ones(2)).to("meta")
    assert (moved.inputs.device.type, moved.targets.device.type) == ("meta", "meta")
