"""Port of context parallelism: one sequence divided over ranks, attention over all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers

    Method = Literal["ulysses", "all_gather", "ring"]


class Tile(Protocol):
    """What one rank computes attention over at one time; global positions and heads, each in ascending order."""

    q_positions: Tensor
    q_heads: Tensor
    k_positions: Tensor
    kv_heads: Tensor


class ContextParallel(Protocol):
    """Attention over a sequence of which each rank of a mesh holds a part.

    The sequence is cut into as many chunks as there are ranks, in order; with ``load_balance`` into twice as
    many, of which rank r of n holds chunks r and 2n - 1 - r, so that under a causal mask all ranks have the same
    work (zig-zag, head-tail). Sizes of chunks differ by at most one, the longer ones first.

    ``device_mesh`` has one dimension. ``seq_len`` is the length of the whole sequence; None means that all
    ranks hold equally many tokens. Gradients are those of the sum of all ranks' losses.
    """

    def context_parallel_indices(self, seq_len: int, cp_size: int, *, load_balance: bool = False) -> list[Tensor]:
        """The positions that each of ``cp_size`` ranks holds, int64, in ascending order.

        Raises:
            ValueError: ``seq_len`` is negative, or ``cp_size`` below 1.
        """

    def context_parallel_layout(
        self,
        seq_len: int,
        heads: int,
        kv_heads: int,
        cp_size: int,
        *,
        method: Method,
        load_balance: bool = False,
    ) -> list[list[Tile]]:
        """Which queries meet which keys, where and when: for each rank its tiles, one a step.

        With ``ulysses`` a rank has the whole sequence of some heads, with ``all_gather`` its own queries and the
        whole sequence of keys, each in one step. In a ``ring`` of n ranks, rank r has its own queries and at step
        t the keys of rank r - t modulo n.

        Raises:
            ValueError: ``kv_heads`` does not divide ``heads``, or with ``ulysses`` ``cp_size`` does not divide both;
                the message has the two numbers.
        """

    def context_parallel_shard(
        self, tensor: Tensor, device_mesh: DeviceMeshMembers, seq_dim: int, *, load_balance: bool = False
    ) -> Tensor:
        """This rank's part of a tensor that all ranks have, along ``seq_dim``; a copy. No communication."""

    def context_parallel_unshard(
        self,
        tensor: Tensor,
        device_mesh: DeviceMeshMembers,
        seq_dim: int,
        *,
        load_balance: bool = False,
        seq_len: int | None = None,
    ) -> Tensor:
        """The whole of which ``tensor`` is this rank's part, in the order of the sequence; collective.

        Gradient: the sum over the ranks of this part's.
        """

    def context_parallel_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        device_mesh: DeviceMeshMembers,
        *,
        method: Method,
        causal: bool = False,
        documents: Tensor | None = None,
        padding: Tensor | None = None,
        load_balance: bool = False,
        seq_len: int | None = None,
        overlap: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Softmax attention of this rank's queries over the keys of all ranks; collective.

        A query sees the keys that are not padding, are of its document and, with ``causal``, do not come after
        it. A query that sees none gives zeros.

        Args:
            q: (batch, heads, tokens, width), this rank's part of the sequence.
            k: (batch, kv_heads, tokens, width). ``kv_heads`` divides ``heads``: fewer is GQA, where query head h
                goes with key head h // (heads / kv_heads).
            v: (batch, kv_heads, tokens, value width).
            device_mesh: over which the sequence is divided.
            method: ``ulysses`` exchanges tokens for heads by all-to-all and back; ``all_gather`` gathers keys and
                values; ``ring`` passes them on, and joins partial softmaxes by their log-sum-exp.
            causal: whether keys after the query are hidden.
            documents: (batch, tokens), int64: the document of each token of a packed sequence.
            padding: (batch, tokens), bool: True where the token is padding.
            load_balance: how the sequence is divided.
            seq_len: see the class.
            overlap: whether transfers go on while the rank computes; changes no bit.
            scale: of the scores; None means width ** -0.5.

        Returns:
            (batch, heads, tokens, value width), this rank's part.

        Raises:
            ValueError: as for ``context_parallel_layout``, or the rank holds another number of tokens than it
                should; the message has both.
        """

    def ContextParallel(
        self,
        seq_dim: int = 1,
        head_dim: int = 2,
        ulysses_degree: int | None = None,
        qkv_indices: tuple[int, ...] = (0, 1, 2),
        qkv_kwarg_names: tuple[str, ...] = (),
        *,
        query_kwargs: Mapping[str, int] | None = None,
        key_kwargs: Mapping[str, int] | None = None,
    ) -> Any:
        """Style for a module that computes attention: ``apply(module, device_mesh)`` puts hooks on it.

        Before forward, q, k and v of this rank's tokens are laid out anew: the whole sequence of some heads
        (Ulysses), or all keys and values beside this rank's queries. What the module returns, one tensor laid out as
        q, goes back to this rank's tokens. Chunks are in order and equally long. Other arguments pass untouched.

        Args:
            seq_dim: the tokens' dimension of q, k and v.
            head_dim: the heads' dimension of q, k and v.
            ulysses_degree: None or the mesh's size for Ulysses, 1 for all keys and values.
            qkv_indices: where q, k and v are among the positional arguments.
            qkv_kwarg_names: of q, k and v where they are passed by name.
            query_kwargs: name -> tokens' dimension of tensors that go with the queries, such as positions or the
                rows of a mask: gathered where the module gets the queries of all ranks.
            key_kwargs: name -> tokens' dimension of tensors that go with the keys: always gathered.

        Raises:
            ValueError: on ``apply``, the degree does not divide the mesh's size; on forward, it does not divide the
                heads of q, k or v. The message has both numbers.
        """

    def AsyncContextParallel(
        self,
        seq_dim: int = 1,
        head_dim: int = 2,
        ulysses_degree: int | None = None,
        qkv_indices: tuple[int, ...] = (0, 1, 2),
        qkv_kwarg_names: tuple[str, ...] = (),
        *,
        query_kwargs: Mapping[str, int] | None = None,
        key_kwargs: Mapping[str, int] | None = None,
    ) -> Any:
        """``ContextParallel`` whose transfers go on beside the projections that make q, k and v.

        ``apply(module, device_mesh, q_proj=, k_proj=, v_proj=)``: each projection's output is what ``module`` gets.
        Its transfer starts when the projection ends and is waited for when the module begins. In backward the
        gradient's way back starts when the module's gradient is there, and is waited for when the projection's
        backward begins. If a projection is missing, it is ``ContextParallel``.
        """
