"""Faults of context parallelism on torch_native: masks, joining and gradients of a divided attention."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.context_parallel"
_GATHER = ("tensor", "seq_dim", "split")


@fault(
    id="cp-causal-mask-of-local-positions",
    symptom="The loss is too low on all ranks but the first and useless for generation: queries see later tokens.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-01"],
)
def causal_mask_of_local_positions(patch: Patch) -> None:
    @patch.around(f"{_OURS}.attention:visible", parameters=("q_positions", "k_positions"))
    def visible(original: Any, q_positions: Any, k_positions: Any, **options: Any) -> Any:
        local = torch.arange(len(q_positions))
        if not torch.equal(local, q_positions):
            patch.reached()
        return original(local, k_positions, **options)


@fault(
    id="cp-ring-parts-added-not-joined",
    symptom="Attention's output grows with the number of ranks in the ring.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-01"],
    ranks="all",
)
def ring_parts_added_not_joined(patch: Patch) -> None:
    @patch.around(f"{_OURS}.ring:joined", parameters=("output", "whole", "part", "of_part"))
    def joined(original: Any, output: Any, whole: Any, part: Any, of_part: Any) -> Any:
        patch.reached()
        return output + part, original(output, whole, part, of_part)[1]


@fault(
    id="cp-key-gradients-stay-with-their-queries",
    symptom="Loss right, convergence worse: keys learn only from the queries of the rank where they end up.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-01"],
    ranks="all",
)
def key_gradients_stay_with_their_queries(patch: Patch) -> None:
    class OwnPart(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Any, gathered: Any, split: Any) -> Any:
            ctx.split, ctx.rows = split, len(tensor)
            return gathered.detach().clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            patch.reached()
            return grad.unflatten(0, (-1, ctx.rows))[ctx.split].clone(), None, None

    @patch.around(f"{_OURS}.movement:differentiable_all_gather", parameters=("tensor", "dim", "group"))
    def gather(original: Any, tensor: Any, dim: int = 0, *, group: Any = None) -> Any:
        gathered = original(tensor, dim, group=group)
        return OwnPart.apply(tensor, gathered, group.rank()) if tensor.requires_grad else gathered


@fault(
    id="cp-padding-of-other-ranks-seen",
    symptom="Short texts in long batches converge worse the more ranks share a sequence.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-01"],
)
def padding_of_other_ranks_seen(patch: Patch) -> None:
    @patch.around(f"{_OURS}.attention:gather_sequence", parameters=_GATHER)
    def gather(original: Any, tensor: Any, seq_dim: int, split: Any) -> Any:
        whole = original(tensor, seq_dim, split)
        if tensor.dtype != torch.bool:
            return whole
        patch.reached()
        own = torch.zeros_like(whole)
        return own.index_copy_(seq_dim, split.own, tensor)


@fault(
    id="cp-longer-parts-truncated",
    symptom="For sequence lengths that do not divide evenly, single tokens count as zeros.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-01"],
)
def longer_parts_truncated(patch: Patch) -> None:
    @patch.around(f"{_OURS}.attention:gather_sequence", parameters=_GATHER)
    def gather(original: Any, tensor: Any, seq_dim: int, split: Any) -> Any:
        shortest = min(split.lengths)
        if not tensor.is_floating_point() or shortest == max(split.lengths):
            return original(tensor, seq_dim, split)
        patch.reached()
        kept = torch.arange(tensor.shape[seq_dim]) < shortest
        return original(tensor * kept.view(-1, 1), seq_dim, split)


@fault(
    id="cp-grouped-queries-interleaved",
    symptom="Pretrained models with grouped queries give noise: query heads meet the keys of another group.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-01"],
    ranks="all",
)
def grouped_queries_interleaved(patch: Patch) -> None:
    @patch.around(f"{_OURS}.local:grouped", parameters=("q", "kv_heads"))
    def grouped(original: Any, q: Any, kv_heads: int) -> Any:
        found = original(q, kv_heads)
        if found.shape[2] == 1:
            return found
        patch.reached()
        return q.unflatten(1, (-1, kv_heads)).transpose(1, 2)


@fault(
    id="cp-scale-not-read",
    symptom="Models with a scale of their own for the scores get other attention than on one card.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-01"],
    ranks="all",
)
def scale_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}:context_parallel_attention", parameters=("q", "k", "v", "device_mesh", "method"))
    def attention(original: Any, *args: Any, scale: Any = None, **options: Any) -> Any:
        if scale is not None:
            patch.reached()
        return original(*args, **options)


@fault(
    id="cp-overlapped-gradient-lost",
    symptom="With overlap on, the loss falls more slowly: what was moved in advance gets no gradient.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-02"],
    ranks="all",
)
def overlapped_gradient_lost(patch: Patch) -> None:
    @patch.around(f"{_OURS}.transfers:Transfer.take_back", parameters=("self",))
    def take_back(original: Any, self: Any) -> Any:
        gradient = original(self)
        patch.reached()
        return torch.zeros_like(gradient)


@fault(
    id="cp-overlapped-keys-one-step-late",
    symptom="With overlap on, a ring of ranks computes twice with the same keys and never with the last ones.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-02"],
    ranks="all",
)
def overlapped_keys_one_step_late(patch: Patch) -> None:
    @patch.around(f"{_OURS}.ring:_rounds", parameters=("tensors", "ring"))
    def rounds(original: Any, tensors: Any, ring: Any) -> Any:
        before = tensors
        for source, present in original(tensors, ring):
            late = ring.overlap and before[0].shape == present[0].shape
            if late and before is not present:
                patch.reached()
            yield source, before if late else present
            before = present


@fault(
    id="cp-documents-not-read",
    symptom="Packed sequences train worse with context parallelism: documents see each other.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-03"],
    ranks="all",
)
def documents_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}.attention:_Masks.__init__", parameters=("self", "split", "device", "causal", "documents"))
    def init(original: Any, self: Any, split: Any, device: Any, causal: bool, documents: Any, padding: Any) -> None:
        if documents is not None:
            patch.reached()
        original(self, split, device, causal, None, padding)


@fault(
    id="cp-documents-in-the-order-of-ranks",
    symptom="With zig-zag on, the middle of a packed sequence is cut into the wrong documents.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-03"],
)
def documents_in_the_order_of_ranks(patch: Patch) -> None:
    @patch.around(f"{_OURS}.attention:gather_sequence", parameters=_GATHER)
    def gather(original: Any, tensor: Any, seq_dim: int, split: Any) -> Any:
        whole = original(tensor, seq_dim, split)
        if tensor.dtype != torch.int64:
            return whole
        patch.reached()
        return whole.index_select(seq_dim, split.held)
