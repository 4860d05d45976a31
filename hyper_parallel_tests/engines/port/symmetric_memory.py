"""Port of symmetric memory: a heap of the same layout on every rank, which other ranks read and write by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup

    SignalOp = Literal["set", "add"]
    CompareOp = Literal["eq", "ne", "gt", "ge", "lt", "le"]


class SymmetricHeapMembers(Protocol):
    """What of a heap is taken. Ranks that make the same calls in the same order get the same offsets."""

    def allocate(self, nbytes: int, alignment: int | None = None) -> int:
        """Takes ``nbytes`` bytes and returns their offset, a multiple of ``alignment`` (None: the heap's).

        Raises:
            ValueError: ``nbytes`` is not positive, or ``alignment`` is no power of two.
            MemoryError: no piece is large enough; the message has the bytes asked for, the largest piece's, and
                those that are free of those of the heap.
        """

    def free(self, offset: int) -> None:
        """Gives back what begins at ``offset``, in any order; neighbouring pieces become one again.

        Raises:
            ValueError: nothing begins there, or it was given back before.
        """

    @property
    def free_bytes(self) -> int:
        """Bytes that are not taken."""


class HeldTransfers(Protocol):
    """Transfers of the calling rank that go on only as told."""

    def deliver(self, steps: int = 1) -> None:
        """Has the next ``steps`` steps done, and returns when they are. A step is the data of a put, or a signal."""


class SymmetricMemoryOwner(Protocol):
    """A heap on each rank of a group, and what the calling rank has in it.

    Attributes:
        device: where the memory is.
    """

    device: torch.device

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of any values at the same offset on every rank; collective, with equal arguments.

        It is aligned to 64 bytes at least.

        Raises:
            ValueError: a dimension is not positive, or ranks ask for different sizes: on every rank, and nothing is
                taken; the message has the sizes by rank.
            MemoryError: as for ``SymmetricHeapMembers.allocate``, on every rank.
        """

    def free(self, tensor: Tensor) -> None:
        """Gives back what ``empty`` returned, once no rank has puts under way; collective. ``tensor`` is empty then.

        Raises:
            ValueError: ``tensor`` is not one of this owner's, or was given back before; or ranks give back different
                ones: on every rank, and all stay.
        """

    def quiet(self, timeout: timedelta | None = None) -> None:
        """Returns when all puts and signals of the calling rank are done at their targets.

        Raises:
            TimeoutError: some are not; the message has their number and their targets.
        """

    def fence(self) -> None:
        """Puts and signals after it are done after those before it. Without it they are done in any order."""

    def barrier(self, timeout: timedelta | None = None) -> None:
        """``quiet``, and returns when all ranks have come. A rank that leaves by TimeoutError has not come.

        Raises:
            TimeoutError: the message has the ranks that have not come.
        """

    def transfers_held(self) -> AbstractContextManager[HeldTransfers]:
        """Context in which no put or signal of the calling rank is done before it is told to, for tests.

        What depends on an earlier put without waiting for it is seen to, each time. On exit all go on.
        """

    def close(self) -> None:
        """Ends it: by all ranks, when none uses it any more. Puts under way are completed; no memory is left behind."""


class SymmetricMemory(Protocol):
    """One-sided communication, of which the other side takes no notice.

    ``target_rank`` is a rank of the owner's group. Symmetric tensors are contiguous tensors from
    ``SymmetricMemoryOwner.empty``, or contiguous parts of one; one stands for that at the same place of the heap of
    ``target_rank``. Offsets and sizes are in elements. A signal is a word of a symmetric int32 tensor, at its offset;
    its arithmetic is modulo 2 ** 32.

    Puts and signals are asynchronous: what they have written may be read on the target after a wait for a signal that
    follows the data, and on any rank after the caller's ``quiet`` or ``barrier`` and a message that tells of it. Read
    before, memory holds the old values, the new ones, or some of both. ``timeout=None`` means 30 seconds, everywhere.

    Source: HyperParallel's core.symmetric_memory, which counts elements too, though its documentation speaks of bytes;
    ``quiet``, ``fence`` and the other comparisons are OpenSHMEM's.
    """

    def symmetric_heap(self, nbytes: int, *, alignment: int = 64) -> SymmetricHeapMembers:
        """The bookkeeping of a heap of ``nbytes`` bytes, without memory.

        Raises:
            ValueError: ``nbytes`` is no positive multiple of ``alignment``, or that is no power of two.
        """

    def acquire_symmetric_memory(
        self, group: ProcessGroup | None = None, *, heap_size: int | None = None
    ) -> SymmetricMemoryOwner:
        """Makes a heap on each rank of ``group`` (None: all ranks); collective.

        Args:
            group: who can reach the memory.
            heap_size: bytes of each rank, of which the engine may keep a few for itself; None means the environment's
                ``SYMMETRIC_MEMORY_HEAP_SIZE``, or 1 GiB.

        Raises:
            ValueError: ``heap_size`` is not positive.
        """

    def shmem_put(
        self, target: Tensor, target_offset: int, src: Tensor, src_offset: int, size: int, target_rank: int
    ) -> None:
        """Writes ``size`` elements of ``src`` into ``target`` on ``target_rank``. ``src`` may change afterwards.

        Raises:
            ValueError: ``target`` is not symmetric, dtypes differ, a range leaves its tensor, or there is no such rank;
                the message has the numbers.
        """

    def shmem_get(
        self, target: Tensor, target_offset: int, src: Tensor, src_offset: int, size: int, target_rank: int
    ) -> None:
        """Reads ``size`` elements of the symmetric ``src`` on ``target_rank`` into ``target``, and returns then.

        Puts of the calling rank that are under way may not be seen.

        Raises:
            ValueError: as for ``shmem_put``.
        """

    def shmem_signal_op(
        self, signal: Tensor, signal_offset: int, signal_value: int, signal_op: SignalOp = "set", target_rank: int = 0
    ) -> None:
        """Sets a word of ``signal`` on ``target_rank`` or adds to it, as one step: no other rank's addition is lost.

        Raises:
            ValueError: ``signal`` is not a symmetric int32 tensor, has no such word, or there is no such rank or
                operation.
        """

    def shmem_put_with_signal(
        self,
        target: Tensor,
        target_offset: int,
        src: Tensor,
        src_offset: int,
        size: int,
        signal: Tensor,
        signal_offset: int,
        signal_value: int,
        signal_op: SignalOp = "set",
        target_rank: int = 0,
    ) -> None:
        """``shmem_put``, and when its data is there ``shmem_signal_op``."""

    def shmem_wait_for_signal(
        self,
        signal: Tensor,
        signal_offset: int,
        compare_value: int,
        compare_op: CompareOp = "eq",
        *,
        source_rank: int | None = None,
        timeout: timedelta | None = None,
    ) -> int:
        """Returns when the word of the calling rank's ``signal`` compares so to ``compare_value``, with the word.

        Args:
            signal, signal_offset: the word, which stands on the left of the comparison.
            compare_value, compare_op: what it is held to.
            source_rank: whom the signal is expected from, for the message.
            timeout: how long to wait.

        Raises:
            ValueError: as for ``shmem_signal_op``.
            TimeoutError: the message has the word's offset, what was expected and found, and both ranks.
        """

    def shmem_allgather(self, output_tensor: Tensor, input_tensor: Tensor) -> None:
        """All ranks' ``input_tensor`` one after the other in the symmetric ``output_tensor``; collective.

        Raises:
            ValueError: the output has not as many elements as all inputs (the message has both numbers), or another
                dtype: before anything is written.
        """

    def shmem_alltoall(
        self, send_tensor_list: Sequence[Tensor], receive_tensor: Tensor, receive_list: Sequence[int]
    ) -> None:
        """What all ranks send to this one, one after the other in the symmetric ``receive_tensor``; collective.

        Args:
            send_tensor_list: for each rank what it is sent; may be empty, sizes may differ.
            receive_tensor: at least as large as all that comes.
            receive_list: for each rank how many elements it sends.

        Raises:
            ValueError: a rank sends another number than is expected, or more comes than there is room for: on every
                rank, before anything is written; the message has the ranks and both numbers. Or dtypes differ.
        """

    def fused_all_gather_matmul(
        self, a: Tensor, b: Tensor, c: Tensor, gather_out: Tensor, signal: Tensor, block_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """All-gather of ``a``'s rows and product with ``b``, each block computed when it is there; collective.

        Args:
            a: (rows, inner), this rank's rows, as many on each rank.
            b: (inner, columns).
            c: (ranks * rows, columns), where the product goes.
            gather_out: (ranks * rows, inner), symmetric, where the rows of all ranks go.
            signal: one word for each rank, symmetric int32; its values before do not matter.
            block_size: rows that travel together; None cuts into min(ranks, 4) blocks. The last block may be shorter.

        Returns:
            ``gather_out`` and ``c``.

        Raises:
            ValueError: shapes or dtypes do not fit; the message has them.
        """

    def fused_matmul_reduce_scatter(
        self, x1: Tensor, x2: Tensor, symm_tensor: Tensor, signal: Tensor, reduce_op: Literal["sum", "avg"] = "sum"
    ) -> Tensor:
        """Product of each rank's matrices, summed over the ranks, of which each rank gets its rows; collective.

        The sum is in the order of ranks, so that it does not depend on who is late.

        Args:
            x1: (rows, inner); ``rows`` is a multiple of the number of ranks.
            x2: (inner, columns).
            symm_tensor: (rows, columns), symmetric, for what other ranks send.
            signal: one word for each rank, symmetric int32; its values before do not matter.
            reduce_op: sum, or mean over the ranks.

        Returns:
            (rows / ranks, columns), a tensor of its own.

        Raises:
            ValueError: shapes or dtypes do not fit, or there is no such operation; the message has them.
        """
