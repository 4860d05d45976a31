"""What a program really holds, and what a dry run tells of it, by kinds."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.port.dry_run import DryRunProgram
from hyper_parallel_tests.models.held_bytes import SavedBytes, held_by


def really(program: DryRunProgram) -> dict[str, int]:
    """What the same program holds if it is run."""
    with SavedBytes(program.model, program.data).watched() as saved:
        program.forward().backward()
    program.optimizer.step()
    return held_by(program.model, program.optimizer, saved.most)._asdict()


def told(estimate: Any) -> dict[str, int]:
    """An estimate as a dict."""
    kinds = ("parameters", "gradients", "optimizer", "activations")
    return {kind: getattr(estimate, kind) for kind in kinds}
