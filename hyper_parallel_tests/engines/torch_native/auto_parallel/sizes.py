"""How much of a decoder one rank has: elements, saved elements, operations. Counted, not fitted.

The activations are those that PyTorch saves for the modules of a decoder in eager fp32 on the CPU, with heads wider
than two elements: narrower ones get no fused attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Part", "block", "embedding", "head"]


class Part(NamedTuple):
    """One rank's share of some modules.

    Attributes:
        elements: of the parameters, on the rank that has most of them.
        gathered: the same before they are sharded.
        tensors: number of parameters.
        saved: elements that one row leaves for backward.
        saved_once: elements that a micro-batch leaves whatever its rows.
        operations: of one row's forward.
        reduced: elements of one row that tensor parallelism reduces, forward and backward.
    """

    elements: int = 0
    gathered: int = 0
    tensors: int = 0
    saved: int = 0
    saved_once: int = 0
    operations: int = 0
    reduced: int = 0

    def __add__(self, other: Part) -> Part:
        return Part(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))


def block(shape: Any, fsdp: int, tp: int) -> Part:
    """Norms, attention by heads, and feed-forward by its inner width."""
    hidden, width, seq = shape.hidden, shape.head_width, shape.seq
    queries, keys, inner = shape.heads * width // tp, shape.kv_heads * width // tp, shape.ffn // tp
    columns = [(queries, hidden), (keys, hidden), (keys, hidden), (inner, hidden), (inner, hidden)]
    matrices = [*columns, (hidden, queries), (hidden, inner)]
    # Each norm saves its input, what it divides by, the quotient, and its output; attention the queries, keys, values,
    # its output twice, and a sum a head; the feed-forward both products, the gate and what goes down.
    normed, attended = 2 * (3 * hidden + 1), 3 * queries + 2 * keys + shape.heads // tp
    return _part(
        [*matrices, (hidden, 1), (hidden, 1)],
        fsdp,
        saved=seq * (normed + attended + 4 * inner),
        # Cosines and sines of the positions, of the queries and of the keys.
        saved_once=4 * seq * (width // 2),
        operations=2 * seq * sum(rows * columns for rows, columns in matrices) + 4 * seq * seq * queries,
        reduced=4 * seq * hidden if tp > 1 else 0,
    )


def embedding(shape: Any, fsdp: int, tp: int) -> Part:
    """The table of tokens by rows; of what it gives, the first block saves its part."""
    reduced = 2 * shape.seq * shape.hidden if tp > 1 else 0
    return _part([(shape.vocab // tp, shape.hidden)], fsdp, reduced=reduced)


def head(shape: Any, fsdp: int, tp: int) -> Part:
    """Norm, output by columns, and the loss of whole logits. A tied output has no parameter of its own."""
    matrix = (shape.vocab // tp, shape.hidden)
    return _part(
        [(shape.hidden, 1)] if shape.tied else [matrix, (shape.hidden, 1)],
        fsdp,
        saved=shape.seq * (3 * shape.hidden + 1 + shape.vocab),
        saved_once=1,
        operations=2 * shape.seq * matrix[0] * matrix[1],
        reduced=shape.seq * (shape.vocab + shape.hidden) if tp > 1 else 0,
    )


def _part(matrices: list[tuple[int, int]], fsdp: int, **others: int) -> Part:
    # Shards are of whole rows, and the first rank has no fewer than any other.
    elements = sum(-(-rows // fsdp) * columns for rows, columns in matrices)
    return Part(elements, sum(rows * columns for rows, columns in matrices), len(matrices), **others)
