"""Sparse attention of torch_native: DeepSeek's indexer, its selection and its loss, as plain references.

Keys, their index vectors and positions are gathered over the ranks, queries stay. Source: DeepSeek-AI,
"DeepSeek-V3.2-Exp", 2025: the score (1), the selection (2), the loss of the dense warm-up (3) and of sparse
training (4).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hyper_parallel_tests.engines.torch_native.context_parallel.local import attend, grouped, probabilities, scores
from hyper_parallel_tests.engines.torch_native.context_parallel.movement import gather_sequence
from hyper_parallel_tests.engines.torch_native.context_parallel.split import Split, split_over


@torch.no_grad()
def dsa_indexer(
    index_q: Tensor,
    index_k: Tensor,
    weights: Tensor,
    topk: int,
    device_mesh: DeviceMesh,
    *,
    load_balance: bool = False,
    seq_len: int | None = None,
) -> Tensor:
    """See the port. Keys are sorted stably in the order of the sequence, so that ties go to the earlier one."""
    if topk < 1:
        raise ValueError(f"each query needs at least one key, got topk={topk}")
    split = split_over(device_mesh, index_q.shape[1], seq_len, load_balance)
    products = _index_scores(index_q, gather_sequence(index_k, 1, split), weights)
    order = products.masked_fill(~_causal(split, products), -torch.inf).sort(dim=-1, descending=True, stable=True)
    best = order.indices.masked_fill(order.values == -torch.inf, -1)[..., :topk]
    return torch.nn.functional.pad(best, (0, topk - best.shape[-1]), value=-1)


def dsa_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    device_mesh: DeviceMesh,
    *,
    load_balance: bool = False,
    seq_len: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """See the port."""
    split = split_over(device_mesh, q.shape[2], seq_len, load_balance)
    k, v = (gather_sequence(one, 2, split) for one in (k, v))
    return attend(q, k, v, chosen(indices, k.shape[2]), scale)


def dsa_indexer_loss(
    q: Tensor,
    k: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    weights: Tensor,
    indices: Tensor | None,
    device_mesh: DeviceMesh,
    *,
    variant: str = "sparse",
    load_balance: bool = False,
    seq_len: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """See the port."""
    if variant not in ("sparse", "dense"):
        raise ValueError(f"unknown variant {variant!r} of the indexer's loss: expected sparse or dense")
    split = split_over(device_mesh, q.shape[2], seq_len, load_balance)
    products = _index_scores(index_q, gather_sequence(index_k, 1, split), weights)
    seen = _causal(split, products)
    if variant == "sparse":
        seen = seen & chosen(indices, products.shape[-1])
    target = _mean_probabilities(q.detach(), gather_sequence(k.detach(), 2, split), seen, scale)
    lowest = torch.finfo(products.dtype).min
    logarithms = products.masked_fill(~seen, lowest).log_softmax(-1)
    # Where p is zero the term is zero, whatever the indexer says.
    divergence = (torch.xlogy(target, target) - target * logarithms.masked_fill(~seen, 0.0)).sum()
    return divergence / (len(q) * sum(split.lengths))


def chosen(indices: Tensor, keys: int) -> Tensor:
    """(batch, queries, topk) positions or -1 -> (batch, queries, keys), bool."""
    # -1 goes to a place behind the last key, which is then cut off.
    places = indices.masked_fill(indices < 0, keys)
    marked = torch.zeros(*indices.shape[:-1], keys + 1, dtype=torch.bool, device=indices.device)
    return marked.scatter(-1, places, True)[..., :keys]


def _index_scores(index_q: Tensor, index_k: Tensor, weights: Tensor) -> Tensor:
    """(batch, own queries, keys)."""
    return torch.einsum("bqj,bqjk->bqk", weights, torch.einsum("bqjd,bkd->bqjk", index_q, index_k).relu())


def _causal(split: Split, products: Tensor) -> Tensor:
    """Which keys do not come after the query, (1, own queries, keys)."""
    keys = torch.arange(products.shape[-1], device=products.device)
    return (keys[None, :] <= split.own.to(products.device)[:, None])[None]


def _mean_probabilities(q: Tensor, k: Tensor, seen: Tensor, scale: float | None) -> Tensor:
    """The attention's probabilities, averaged over the heads, (batch, queries, keys)."""
    return probabilities(scores(grouped(q, k.shape[1]), k, scale), seen).mean((1, 2))
