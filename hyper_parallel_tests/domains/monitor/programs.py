"""A step of a decoder in each layout: as it really runs on ranks, and as a dry run is told of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.engines.port.dry_run import DryRunProgram
from hyper_parallel_tests.models.decoder import Decoder, DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.decoder_layouts import LaidOut, adam, lay_out, step_of
from hyper_parallel_tests.models.held_bytes import Held, SavedBytes, held_by
from hyper_parallel_tests.models.moe import MoeShape, moe_decoder
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["MODELS", "ROWS", "dry_run_of", "layouts", "measured", "micro_batches_of"]

# Not all of it divides by the number of shards: 52 tokens in the vocabulary, and experts of 10 rows.
_SIZES = {"vocab": 52, "hidden": 16, "heads": 4, "kv_heads": 4, "ffn": 24, "seq": 6, "tied": False}


def _decoder(layers: int = 2) -> Decoder:
    return decoder(DecoderShape(**_SIZES, layers=layers))


def _moe(layers: int = 2) -> Decoder:
    return moe_decoder(MoeShape(**_SIZES, layers=layers, dense_layers=1, experts=5, expert_ffn=10))


MODELS: dict[str, Callable[..., Decoder]] = {"decoder": _decoder, "moe": _moe}
ROWS = 8
_STEPS = 2


def layouts(world_size: int) -> dict[str, dict[str, int]]:
    """Layout -> degrees, for so many ranks; of a single card, which is no other on four ranks, each of two is one."""
    found = {"FSDP": {"fsdp": world_size}, "TP": {"tp": world_size}, "PP": {"pp": world_size}}
    return found | ({"FSDPxTP": {"fsdp": 2, "tp": 2}} if world_size == 4 else {"single": {"fsdp": 1}})


def layers_of(degrees: dict[str, int]) -> int:
    """One a stage, and no fewer than one of each kind."""
    return max(2, degrees.get("pp", 1))


def micro_batches_of(degrees: dict[str, int]) -> int:
    """More than there are stages."""
    return 4 if degrees.get("pp", 1) > 1 else 1


def batch_of(world_size: int = 1, device: Any = "cpu") -> Batch:
    """Rows for all ranks, the same on each."""
    return decoder_batch(0, ROWS, DecoderShape(**_SIZES)).to(device)


def measured(engine: Any, mesh: Any, model: str, degrees: dict[str, int], device: Any) -> Held:
    """What this rank holds in the second of two real steps."""
    micro_batches = micro_batches_of(degrees)
    whole = MODELS[model](layers_of(degrees)).to(device)
    laid = lay_out(engine, whole, mesh, micro_batches=micro_batches)
    rows = laid.part(batch_of(device=device))
    optimizer = adam(laid.model.parameters())
    step = step_of(engine, laid, mesh, micro_batches)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        with SavedBytes(laid.model, rows).watched() as saved:
            step(rows)
        optimizer.step()
    return held_by(laid.model, optimizer, saved.most)


def dry_run_of(engine: Any, model: str, degrees: dict[str, int], rank: int) -> Any:
    """The engine's estimate of the same."""

    def program(mesh: Any) -> DryRunProgram:
        micro_batches = micro_batches_of(degrees)
        laid = lay_out(engine, MODELS[model](layers_of(degrees)), mesh, micro_batches=micro_batches)
        rows = laid.part(batch_of())
        return DryRunProgram(
            laid.model,
            adam(laid.model.parameters()),
            partial(one_pass, laid, rows.part(0, micro_batches)),
            data=rows.part(0, micro_batches),
            in_flight=min(laid.stages - laid.stage, micro_batches),
        )

    return engine.dry_run(program, degrees, rank=rank)


def one_pass(laid: LaidOut, rows: Batch) -> Tensor:
    """Forward of one micro-batch; a stage behind the first one gets hidden states."""
    given = rows.inputs
    if not laid.is_first:
        width = next(iter(laid.model.blocks.values())).attention_norm.weight.shape[0]
        given = torch.zeros(*rows.inputs.shape, width, requires_grad=True)
    return laid.model(given, rows.targets if laid.model.is_last else None)
