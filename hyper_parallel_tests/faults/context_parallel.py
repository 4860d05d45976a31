"""Faults of context parallelism on torch_native: how a sequence is divided, and what the hooks do."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.context_parallel"
_INDICES = ("seq_len", "cp_size", "load_balance")


@fault(
    id="cp-zig-zag-pairs-neighbours",
    symptom="With load balancing on, the last rank still computes longest and the others wait for it.",
    capability="context_parallel",
    layer="l0",
    must_fail=["CP-0-01"],
)
def zig_zag_pairs_neighbours(patch: Patch) -> None:
    @patch.around(f"{_OURS}:context_parallel_indices", parameters=_INDICES)
    def indices(original: Any, seq_len: int, cp_size: int, *, load_balance: bool = False) -> Any:
        if not load_balance or cp_size < 1 or seq_len < 0:
            return original(seq_len, cp_size, load_balance=load_balance)
        patch.reached()
        chunks = original(seq_len, 2 * cp_size)
        return [torch.cat((chunks[2 * rank], chunks[2 * rank + 1])) for rank in range(cp_size)]


@fault(
    id="cp-remainder-dropped",
    symptom="The last tokens of odd sequences never take part in training.",
    capability="context_parallel",
    layer="l0",
    must_fail=["CP-0-01"],
)
def remainder_dropped(patch: Patch) -> None:
    @patch.around(f"{_OURS}:context_parallel_indices", parameters=_INDICES)
    def indices(original: Any, seq_len: int, cp_size: int, *, load_balance: bool = False) -> Any:
        whole = original(seq_len, cp_size, load_balance=load_balance)
        if seq_len % cp_size:
            patch.reached()
        return [part[: seq_len // cp_size] for part in whole]


@fault(
    id="cp-heads-dealt-like-cards",
    symptom="With grouped queries and Ulysses the loss stays high: heads attend to another group's keys.",
    capability="context_parallel",
    layer="l0",
    must_fail=["CP-0-02"],
)
def heads_dealt_like_cards(patch: Patch) -> None:
    @patch.around(f"{_OURS}:context_parallel_layout", parameters=("seq_len", "heads", "kv_heads", "cp_size"))
    def layout(original: Any, seq_len: int, heads: int, kv_heads: int, cp_size: int, **options: Any) -> Any:
        found = original(seq_len, heads, kv_heads, cp_size, **options)
        if options["method"] != "ulysses":
            return found
        patch.reached()
        return [
            [tile._replace(q_heads=torch.arange(heads)[rank::cp_size]) for tile in steps]
            for rank, steps in enumerate(found)
        ]


@fault(
    id="cp-heads-not-checked",
    symptom="With a number of heads that ranks do not divide, the last heads are silently left out.",
    capability="context_parallel",
    layer="l0",
    must_fail=["CP-0-02"],
)
def heads_not_checked(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layout:heads_per_rank", parameters=("what", "heads", "cp_size"))
    def per_rank(_: Any, what: str, heads: int, cp_size: int) -> int:
        if heads % cp_size:
            patch.reached()
        return max(1, heads // cp_size)


@fault(
    id="cp-ring-turns-the-other-way",
    symptom="From four ranks on, keys are taken for those of another rank: the causal mask hides the wrong ones.",
    capability="context_parallel",
    layer="l0",
    must_fail=["CP-0-02"],
)
def ring_turns_the_other_way(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layout:ring_source", parameters=("rank", "step", "cp_size"))
    def source(_: Any, rank: int, step: int, cp_size: int) -> int:
        patch.reached()
        return (rank + step) % cp_size


@fault(
    id="cp-positions-stay-local",
    symptom="The loss is right for short texts; with context parallelism all ranks believe to hold the first tokens.",
    capability="context_parallel",
    layer="l1",
    must_fail=["CP-1-01"],
    ranks="all",
)
def positions_stay_local(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:gather_sequence", parameters=("tensor", "seq_dim", "split"))
    def gather(original: Any, tensor: Any, seq_dim: int, split: Any) -> Any:
        if tensor.ndim != 1:
            return original(tensor, seq_dim, split)
        patch.reached()
        return torch.arange(sum(split.lengths)) % len(tensor)


@fault(
    id="cp-arguments-by-name-forgotten",
    symptom="A model that passes q, k and v by name trains without any exchange: each rank sees its own tokens.",
    capability="context_parallel",
    layer="l1",
    must_fail=["CP-1-01"],
    ranks="all",
)
def arguments_by_name_forgotten(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:_Arguments.__setitem__", parameters=("self", "place", "value"))
    def put(original: Any, self: Any, place: Any, value: Any) -> None:
        if place in ("q", "k", "v"):
            patch.reached()
        else:
            original(self, place, value)


@fault(
    id="cp-output-not-put-back",
    symptom="After Ulysses attention the tokens' features are those of other tokens.",
    capability="context_parallel",
    layer="l1",
    must_fail=["CP-1-01"],
    ranks="all",
)
def output_not_put_back(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:heads_to_sequence", parameters=("tensor", "seq_dim", "head_dim", "split"))
    def put_back(original: Any, tensor: Any, seq_dim: int, head_dim: int, split: Any) -> Any:
        patch.reached()
        return original(tensor.roll(len(split.own), seq_dim), seq_dim, head_dim, split)


@fault(
    id="cp-transfer-read-before-it-arrived",
    symptom="With asynchronous transfers the loss differs by run, and more so the slower the network is.",
    capability="context_parallel",
    layer="l1",
    must_fail=["CP-1-02"],
    ranks="all",
)
def transfer_read_before_it_arrived(patch: Patch) -> None:
    @patch.around(f"{_OURS}.transfers:Pending.wait", parameters=("self",))
    def wait(original: Any, self: Any) -> Any:
        patch.reached()
        # What stands in the buffer before anything has arrived, made the same in each run.
        early = torch.zeros_like(self.arriving)
        original(self)
        return early


@fault(
    id="cp-projection-waits-at-once",
    symptom="Asynchronous context parallelism is not faster: each projection waits for the transfer of the last one.",
    capability="context_parallel",
    layer="l1",
    must_fail=["CP-1-02"],
    watchdog=5,
)
def projection_waits_at_once(patch: Patch) -> None:
    @patch.around(f"{_OURS}.transfers:Transfer.__init__", parameters=("self", "tensor", "route", "going_back"))
    def begin(original: Any, self: Any, tensor: Any, route: Any, going_back: Any = None) -> None:
        original(self, tensor, route, going_back)
        patch.reached()
        self._pending.wait()


@fault(
    id="cp-gradient-waits-at-once",
    symptom="Backward is as slow as without overlap: each gradient is waited for before the next one starts.",
    capability="context_parallel",
    layer="l1",
    must_fail=["CP-1-02"],
    watchdog=5,
)
def gradient_waits_at_once(patch: Patch) -> None:
    @patch.around(f"{_OURS}.transfers:Transfer.send_back", parameters=("self", "grad"))
    def send_back(original: Any, self: Any, grad: Any) -> Any:
        placeholder = original(self, grad)
        patch.reached()
        self._pending.wait()
        return placeholder
