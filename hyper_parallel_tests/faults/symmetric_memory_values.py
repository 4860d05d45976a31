"""Faults of symmetric memory on torch_native: barriers, exchanges and fused products."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.symmetric_memory"
_PLACES = ("target", "target_offset", "src", "src_offset", "size")


@fault(
    id="symm-barrier-of-the-last-round",
    symptom="Barriers hold in the first step and in no later one.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
)
def barrier_of_the_last_round(patch: Patch) -> None:
    @patch.around(f"{_OURS}.segment:Segment._late", parameters=("self", "generation"))
    def late(original: Any, self: Any, generation: int) -> Any:
        if generation > 1:
            patch.reached()
        return original(self, min(generation, 1))


@fault(
    id="symm-parts-land-at-equal-distances",
    symptom="Tokens of experts that get more than others are overwritten by those of the next rank.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
)
def parts_land_at_equal_distances(patch: Patch) -> None:
    @patch.around(f"{_OURS}.exchange:_exchange", parameters=("owner", "output", "parts"))
    def exchange(original: Any, owner: Any, output: Any, parts: Any) -> None:
        distance = min(source.numel() for source, _ in parts)
        moved = [(source, owner.rank * distance) for source, _ in parts]
        if [place for _, place in moved] != [place for _, place in parts]:
            patch.reached()
        original(owner, output, moved)


@fault(
    id="symm-gathered-in-another-order",
    symptom="With the fused all-gather the rows of the batch change places, and labels no longer fit.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
    ranks="all",
)
def gathered_in_another_order(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fused:shmem_put_with_signal", parameters=_PLACES)
    def put(original: Any, target: Any, place: int, *others: Any) -> None:
        patch.reached()
        # A sum of all ranks' parts does not see it.
        original(target, (place + target.numel() // 2) % target.numel(), *others)


@fault(
    id="symm-share-of-another-rank",
    symptom="After the fused reduce-scatter each rank goes on with the rows of its neighbour.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
    ranks="all",
)
def share_of_another_rank(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fused:shmem_put_with_signal", parameters=_PLACES)
    def put(original: Any, *arguments: Any) -> None:
        *others, target_rank = arguments
        patch.reached()
        # Who gathers sends the same to all.
        original(*others, 1 - target_rank)


@fault(
    id="symm-last-block-left-out",
    symptom="With a number of rows that blocks do not divide, the last rows of each rank are those of the last step.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
    ranks="all",
)
def last_block_left_out(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fused:_blocks", parameters=("rows", "ranks", "block_size"))
    def blocks(original: Any, rows: int, ranks: int, block_size: int | None) -> Any:
        whole = original(rows, ranks, block_size)
        start, end = whole[0]
        if len(whole) > 1 and whole[-1][1] - whole[-1][0] < end - start:
            patch.reached()
            return whole[:-1]
        return whole


@fault(
    id="symm-block-computed-before-it-came",
    symptom="The fused product differs by run, and more so the slower the transfers are.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
    ranks="all",
)
def block_computed_before_it_came(patch: Patch) -> None:
    from hyper_parallel_tests.engines.torch_native.symmetric_memory.owner import place_of

    @patch.around(f"{_OURS}.fused:shmem_wait_for_signal", parameters=("signal", "signal_offset"))
    def wait(original: Any, *arguments: Any, **options: Any) -> None:
        patch.reached()

    @patch.around(f"{_OURS}:fused_all_gather_matmul", parameters=("a", "b", "c", "gather_out"))
    def fused(original: Any, a: Any, b: Any, c: Any, gather_out: Any, *others: Any) -> Any:
        # The slowest transfers there are, so that it is the same in each run.
        with place_of(gather_out, "gather_out")[0].transfers_held():
            return original(a, b, c, gather_out, *others)


@fault(
    id="symm-mean-is-a-sum",
    symptom="With mean over the ranks outputs are larger the more cards there are.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
    ranks="all",
)
def mean_is_a_sum(patch: Patch) -> None:
    @patch.around(f"{_OURS}:fused_matmul_reduce_scatter", parameters=("x1", "x2", "symm_tensor", "signal"))
    def scatter(original: Any, x1: Any, x2: Any, symm_tensor: Any, signal: Any, reduce_op: str = "sum") -> Any:
        if reduce_op == "avg":
            patch.reached()
            reduce_op = "sum"
        return original(x1, x2, symm_tensor, signal, reduce_op)


@fault(
    id="symm-next-exchange-overwrites",
    symptom="A rank that reads slowly has the next step's values in the place of this one's.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
)
def next_exchange_overwrites(patch: Patch) -> None:
    @patch.around(f"{_OURS}.exchange:_exchange", parameters=("owner", "output", "parts"))
    def exchange(original: Any, owner: Any, output: Any, parts: Any) -> None:
        owner.barrier = patch.reached
        try:
            original(owner, output, parts)
        finally:
            del owner.barrier


@fault(
    id="symm-signals-lost-at-the-start",
    symptom="The fused product stands still when one rank comes to it later than the others.",
    capability="symmetric_memory",
    layer="l2",
    must_fail=["SM-2-01"],
    watchdog=5,
)
def signals_lost_at_the_start(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fused:_begin", parameters=("owner", "signal"))
    def begin(original: Any, owner: Any, signal: Any) -> None:
        owner.barrier = patch.reached
        try:
            original(owner, signal)
        finally:
            del owner.barrier
