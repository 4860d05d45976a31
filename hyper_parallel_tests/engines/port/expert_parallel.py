"""Port of expert parallelism: tokens that choose their experts, and experts divided over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class Routing(Protocol):
    """What a router chose: ``weights`` and ``experts`` (tokens, top_k), best first; ``scores`` (tokens, experts)."""

    weights: Tensor
    experts: Tensor
    scores: Tensor


class Dispatch(Protocol):
    """Rows that have come to this rank's experts.

    ``rows`` are sorted by expert, within it by the rank they came from, within that as they were sent; ``counts``,
    (own experts,), int64, says how many each expert got. ``sent`` and ``received`` count the rows exchanged with
    each rank.
    """

    rows: Tensor
    counts: Tensor
    sent: list[int]
    received: list[int]


class ExpertParallel(Protocol):
    """Layers of experts of which each token sees the few that a router chooses (MoE).

    An assignment is a token together with one of its ``top_k`` choices. ``device_mesh`` has one dimension unless
    said otherwise; of E experts, rank r of n holds E / n from r * E / n on. Each rank routes tokens of its own,
    any number.

    Experts are a module ``forward(rows, counts)``: (rows, dim) sorted by expert, and (experts,) int64 how many each
    has; it returns (rows, dim). Its parameters have the experts in dimension 0, and it reads them as plain tensors
    (``to_local()`` of a distributed one).
    """

    def route_tokens(
        self,
        logits: Tensor,
        top_k: int,
        *,
        score_func: Literal["softmax", "sigmoid"] = "softmax",
        route_norm: bool = False,
        route_scale: float = 1.0,
        expert_bias: Tensor | None = None,
    ) -> Routing:
        """Chooses ``top_k`` experts for each token, of equal ones those with the lower number.

        Args:
            logits: (tokens, experts), any float; scores and weights are at least fp32.
            top_k: choices a token.
            score_func: ``softmax`` over all experts, or ``sigmoid`` of each.
            route_norm: whether a token's weights are divided by their sum; they are zeros where their scores are.
            route_scale: factor on the weights, after that.
            expert_bias: (experts,), added to the scores for the choice alone: weights are made of the scores.

        Raises:
            ValueError: ``top_k`` is below 1 or above the number of experts (the message has both), the score
                function is unknown, or the bias has another number of experts.
        """

    def expert_capacity(self, tokens: int, top_k: int, num_experts: int, capacity_factor: float) -> int:
        """Assignments that one expert takes: ceil(tokens * top_k * capacity_factor / num_experts).

        Raises:
            ValueError: ``capacity_factor`` is not positive.
        """

    def kept_assignments(
        self, routing: Routing, capacity: int, *, drop_policy: Literal["position", "probs"] = "position"
    ) -> Tensor:
        """Which assignments fit, (tokens, top_k), bool: each expert keeps ``capacity`` at most.

        ``position`` keeps those of the first tokens, ``probs`` those of the largest weights, of equal ones the first.

        Raises:
            ValueError: ``capacity`` is negative, or the policy unknown.
        """

    def load_balancing_loss(
        self, scores: Tensor, experts: Tensor, *, device_mesh: DeviceMeshMembers | None = None
    ) -> Tensor:
        """E * sum over experts of f * P: 1 where all is even, E where one expert has everything (and its scores are 1).

        f is the expert's share of all assignments, dropped ones too; P the mean of its scores over the tokens, where a
        token's scores are divided by their sum. Gradient by P alone. With ``device_mesh`` both are of all ranks'
        tokens, and this is the rank's share: all shares add up to the loss. Collective then. Zero tokens give 0.

        Source: Fedus et al., "Switch Transformers", 2021, (4) to (6), for several choices as in Megatron-LM.

        Args:
            scores, experts: (tokens, experts) and (tokens, top_k), of a ``Routing``.
        """

    def router_z_loss(self, logits: Tensor, *, device_mesh: DeviceMeshMembers | None = None) -> Tensor:
        """Mean over the tokens of the square of logsumexp(logits); with ``device_mesh`` the rank's share, as above.

        Source: Zoph et al., "ST-MoE", 2022, (5).
        """

    def attach_auxiliary_loss(self, tensor: Tensor, loss: Tensor, *, scale: float = 1.0) -> Tensor:
        """``tensor``, unchanged; its backward runs that of ``scale * loss`` too, which no loss function has to know.

        The gradient of ``tensor`` is what it would be. Source: Megatron-LM's scaler of auxiliary losses.

        Args:
            loss: a scalar.
        """

    def permute_tokens(
        self, tokens: Tensor, experts: Tensor, num_experts: int, *, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One row for each assignment, sorted by expert and then by assignment.

        Args:
            tokens: (tokens, dim).
            experts: (tokens, top_k), int64.
            kept: (tokens, top_k), bool; None keeps all.

        Returns:
            rows (rows, dim); counts (num_experts,), int64; order (rows,), int64: the assignment token * top_k + choice
            of each row.

        Raises:
            ValueError: there is no such expert.
        """

    def unpermute_tokens(self, rows: Tensor, order: Tensor, weights: Tensor, *, weighted: bool = True) -> Tensor:
        """The inverse: for each token the sum of its rows, each times its weight (not so if ``weighted`` is off).

        Args:
            rows, order: (rows, dim), (rows,), as ``permute_tokens`` gave them.
            weights: (tokens, top_k).

        Returns:
            (tokens, dim) in the dtype of ``rows``; zeros for a token without rows.
        """

    def experts_of_rank(self, num_experts: int, ep_size: int, rank: int) -> range:
        """The experts that a rank holds.

        Raises:
            ValueError: ``ep_size`` does not divide ``num_experts``, or there is no such rank; the message has both
                numbers.
        """

    def dispatch_tokens(self, rows: Tensor, counts: Tensor, device_mesh: DeviceMeshMembers) -> Dispatch:
        """Sends rows sorted by expert to the ranks that hold the experts; collective.

        One all-to-all of the counts and one of the rows. Gradient: the rows' way back, one all-to-all.

        Args:
            rows, counts: (rows, dim), (experts,), as ``permute_tokens`` gave them.

        Raises:
            ValueError: as ``experts_of_rank``; or, on every rank, the counts of one do not add up to its rows or one of
                them is negative. There the message has both numbers, or the counts, and elsewhere that rank.
        """

    def combine_tokens(self, rows: Tensor, dispatch: Dispatch) -> Tensor:
        """Sends what came by ``dispatch`` back, in the order in which it was given there; collective, one all-to-all.

        Gradient: the inverse all-to-all.
        """

    def grouped_mm(self, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """Each expert's rows times its matrix: (rows, in), (experts, in, out), (experts,) int64 -> (rows, out).

        Experts without rows have zero gradients.
        """

    def fused_experts(
        self,
        rows: Tensor,
        counts: Tensor,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
        device_mesh: DeviceMeshMembers,
        *,
        chunks: int = 1,
    ) -> Tensor:
        """Dispatch, down(silu(gate(x)) * up(x)) by grouped GEMM, and combine, as one operation; collective.

        Args:
            rows, counts: as for ``dispatch_tokens``.
            gate, up, down: of this rank's experts, as in ``GroupedExperts``; plain tensors.
            chunks: groups of whole experts that a rank works on one after the other, while the next one's rows arrive
                and the last one's go back; no more than it has experts.

        Raises:
            ValueError: as ``dispatch_tokens``.
        """

    def TokenChoiceTopKRouter(
        self,
        dim: int,
        num_experts: int,
        top_k: int,
        *,
        score_func: Literal["softmax", "sigmoid"] = "softmax",
        route_norm: bool = False,
        route_scale: float = 1.0,
    ) -> nn.Module:
        """Module (tokens, dim), expert_bias=None -> ``Routing`` by a linear ``gate`` without bias; ``route_tokens``.

        Its ``logits`` are the last call's.
        """

    def GroupedExperts(self, dim: int, hidden_dim: int, num_experts: int, use_grouped_mm: bool = False) -> nn.Module:
        """Experts with SwiGLU, down(silu(gate(x)) * up(x)), and parameters as of linear layers.

        ``gate`` and ``up`` are (experts, hidden_dim, dim), ``down`` is (experts, dim, hidden_dim).
        """

    def MoE(
        self,
        dim: int,
        hidden_dim: int,
        num_experts: int,
        top_k: int,
        score_before_experts: bool = False,
        load_balance_coeff: float | None = None,
        use_grouped_mm: bool = False,
        *,
        score_func: Literal["softmax", "sigmoid"] = "softmax",
        route_norm: bool = False,
        route_scale: float = 1.0,
        shared_hidden_dim: int = 0,
        capacity_factor: float | None = None,
        drop_policy: Literal["position", "probs"] = "position",
    ) -> nn.Module:
        """Module (..., dim) -> the same: ``router``, ``experts``, and ``shared`` where there is a shared expert.

        After a call ``routing`` is what the router chose for its tokens, for losses.

        Args:
            dim, hidden_dim: width of a token, and inside an expert.
            score_before_experts: whether rows are weighted before the experts see them, and not after.
            load_balance_coeff: None, or the rate of ``update_expert_bias``: there are buffers ``expert_bias`` and
                ``tokens_per_expert`` then, (experts,) fp32; the latter counts assignments in training, dropped
                ones too, and none again where backward runs a region once more.
            shared_hidden_dim: width inside an expert that sees every token (``shared.gate``, ``up``, ``down``, linear
                layers without bias); 0 for none. It is added with weight 1.
            capacity_factor: None drops nothing; else see ``expert_capacity``, of the tokens of one call on one rank.
                Dropped assignments count as zeros; the weights of the others stay.
        """

    def update_expert_bias(self, moe: nn.Module, *, device_mesh: DeviceMeshMembers | None = None) -> None:
        """expert_bias += rate * sign(mean of the counts - counts), and the counts are zero again.

        With ``device_mesh`` the counts are those of all its ranks; collective then.

        Raises:
            ValueError: the layer was made without ``load_balance_coeff``.

        Source: Wang et al., "Auxiliary-Loss-Free Load Balancing", 2024, algorithm 1.
        """

    def ExpertParallel(
        self, token_dispatcher: str = "all_to_all", async_combine: bool = False, *, fused: bool = False, chunks: int = 1
    ) -> Any:
        """Style for experts: ``apply(module, device_mesh)`` divides them, and has rows dispatched and combined.

        Each rank's own values are divided, nothing is sent; all parameters, those of parts of the module too, become
        distributed ones, ``Shard(0)``. The module is called with ``rows`` and ``counts`` of all experts as before.

        Args:
            token_dispatcher: ``all_to_all``.
            async_combine: whether what comes back may still be on its way when the module returns, and is waited for by
                the first that reads it. Changes no bit.
            fused: whether ``fused_experts`` computes in the module's place; it needs ``gate``, ``up`` and ``down``.
            chunks: see there; more than one needs ``fused``.

        Raises:
            ValueError: unknown dispatcher, chunks below 1, or more without ``fused``; on ``apply``,
                before anything is changed, the mesh's size does not divide the experts (the message has both numbers),
                or a parameter is divided already.
        """

    def ExpertTensorParallel(self, token_dispatcher: str = "all_to_all", async_combine: bool = False) -> Any:
        """``ExpertParallel`` over a mesh (ep, tp): each expert's hidden width is divided over the second dimension.

        Of ``gate`` and ``up`` that is dimension 1, of ``down`` dimension 2. Ranks of one tp group route the same
        tokens, and each gets the whole output and the whole gradient of its rows.

        Raises:
            ValueError: as ``ExpertParallel``, or the second dimension does not divide the hidden width.
        """

    def synchronize_moe_gradients(
        self, module: nn.Module, device_mesh: DeviceMeshMembers, *, reduce_op_type: Literal["avg", "sum"] = "avg"
    ) -> None:
        """Makes of the gradients of each rank's loss those of all ranks' losses together, or of their mean; collective.

        What is on all ranks of ``device_mesh``, of one dimension or more, is summed over all of them; divided experts
        have the sum over the dimensions that they are divided over, and are summed over the others. Absent gradients
        count as zeros where another rank has one. ``avg`` divides all of them alike, by the mesh's size. Which
        dimensions a parameter is divided over is told by their names.
        """
