"""Port of sparse attention: an indexer chooses the keys that each query sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class SparseAttention(Protocol):
    """Causal attention in which each query sees the keys that score best with a small indexer (DSA).

    The score of key s for query t is ``sum_j weights[t, j] * relu(index_q[t, j] . index_k[s])`` over the indexer's
    heads j. Tensors are this rank's part of the sequence, divided as for context parallelism; ``load_balance``
    and ``seq_len`` are as there. Index tensors are (batch, tokens, index heads, index width) for ``index_q``,
    (batch, tokens, index width) for ``index_k`` and (batch, tokens, index heads) for ``weights``.
    """

    def dsa_indexer(
        self,
        index_q: Tensor,
        index_k: Tensor,
        weights: Tensor,
        topk: int,
        device_mesh: DeviceMeshMembers,
        *,
        load_balance: bool = False,
        seq_len: int | None = None,
    ) -> Tensor:
        """Chooses for each query the ``topk`` keys of the best scores among those not after it; collective.

        Of equal scores the earlier key is chosen. No gradient.

        Returns:
            (batch, tokens, topk), int64: positions in the whole sequence, best first; -1 where there are no more.

        Raises:
            ValueError: ``topk`` is below 1.
        """

    def dsa_sparse_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        indices: Tensor,
        device_mesh: DeviceMeshMembers,
        *,
        load_balance: bool = False,
        seq_len: int | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Softmax attention of this rank's queries over the chosen keys, wherever they are; collective.

        ``q``, ``k`` and ``v`` are (batch, heads, tokens, width), as in ``context_parallel_attention``.
        """

    def dsa_indexer_loss(
        self,
        q: Tensor,
        k: Tensor,
        index_q: Tensor,
        index_k: Tensor,
        weights: Tensor,
        indices: Tensor | None,
        device_mesh: DeviceMeshMembers,
        *,
        variant: Literal["sparse", "dense"] = "sparse",
        load_balance: bool = False,
        seq_len: int | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """This rank's share of the loss that draws the indexer to the attention; collective.

        The loss is the mean over all queries of the whole sequence, and over the batch, of KL(p || softmax(scores)),
        where p is the mean of the heads' attention probabilities. ``dense`` takes all keys not after the query, in
        both; ``sparse`` takes those of ``indices``. The shares of all ranks add up to the loss. The gradient
        reaches the index tensors alone.
        """
