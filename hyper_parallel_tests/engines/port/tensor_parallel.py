"""Port of tensor parallelism: layers divided over ranks by a plan of styles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class TensorParallel(Protocol):
    """Layers whose matrices are divided over ranks, each rank computing with its part.

    Parameters become distributed tensors: ``placements`` over ``device_mesh``, ``full_tensor()`` to gather
    (collective). A module of linear layers needs a pair of them, columnwise then rowwise, and one all-reduce.
    """

    def parallelize_module(
        self,
        module: nn.Module,
        device_mesh: DeviceMeshMembers,
        parallelize_plan: Any,
        *,
        src_data_rank: int | None = 0,
    ) -> nn.Module:
        """Divides ``module`` in place over a mesh of one dimension.

        Parameters on the meta device stay there, divided in shape alone. What ranks do not divide is divided as by
        ``torch.chunk``: the last parts are smaller or empty. A path that matches nothing is left out with a warning
        that names it, and one parameter under two names stays one.

        Args:
            module: of which the plan's keys are parts.
            device_mesh: of one dimension, e.g. ``mesh["tp"]``.
            parallelize_plan: a style for the module itself, or module path -> style; a path may have
                wildcards (``blocks.*.ffn.up``), and an empty one is the module itself.
            src_data_rank: index in the mesh of the rank whose real parameters are taken, the others' values do not
                matter. None: each rank divides its own, and nothing is sent. Styles that leave parameters whole take
                each rank's own in either case.

        Returns:
            ``module``, the same object.

        Raises:
            ValueError: the mesh has more than one dimension.
            TypeError: the plan is neither a style nor a dict of them.
            RuntimeError: two paths of the plan name one module.
        """

    def ColwiseParallel(
        self, *, input_layouts: Any = None, output_layouts: Any = None, use_local_output: bool = True
    ) -> Any:
        """Style: output features are divided. Linear: weight ``Shard(0)``, bias ``Shard(0)``; Embedding:
        weight ``Shard(1)``.

        Args:
            input_layouts: placement of the first input; None means ``Replicate()``.
            output_layouts: placement of the output; None means ``Shard(-1)``.
            use_local_output: whether the module returns its plain local tensor instead of a distributed one.

        Raises:
            NotImplementedError: on use for a module that is neither Linear nor Embedding.
        """

    def RowwiseParallel(
        self, *, input_layouts: Any = None, output_layouts: Any = None, use_local_output: bool = True
    ) -> Any:
        """Style: input features are divided, partial outputs are summed. Linear: weight ``Shard(1)``, bias
        ``Replicate()``; Embedding: weight ``Shard(0)``, input ``Replicate()``.

        Args:
            input_layouts: placement of the first input; None means ``Shard(-1)``, which an Embedding's seldom is.
            output_layouts: placement of the output; None means ``Replicate()``, by an all-reduce.
            use_local_output: as for ``ColwiseParallel``.

        Raises:
            NotImplementedError: on use for a module that is neither Linear nor Embedding.
        """

    def SequenceParallel(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> Any:
        """Style: parameters stay whole, the module runs on a part of the sequence. For norms and dropout.

        Plain inputs are this rank's part already. Gradients of the parameters are those of the whole sequence, though
        perhaps still partial. Random numbers are other ones for each part.

        Args:
            sequence_dim: dimension of the input and the output that is divided.
            use_local_output: as for ``ColwiseParallel``.
        """

    def PrepareModuleInput(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict[str, Any] | None = None,
        desired_input_kwarg_layouts: dict[str, Any] | None = None,
        use_local_output: bool = False,
    ) -> Any:
        """Style: lays the inputs out anew before the module runs; parameters are left alone.

        Args:
            input_layouts: placement of each positional input, a single one for a single input; None for an input
                that is passed on as it is.
            desired_input_layouts: what the module gets, one for each of ``input_layouts``.
            input_kwarg_layouts, desired_input_kwarg_layouts: the same for inputs by name; others pass as they are.
            use_local_output: whether the module gets plain local tensors.

        Raises:
            AssertionError: not as many desired layouts as given ones.
            ValueError: on use with another number of positional inputs.
        """

    def PrepareModuleOutput(
        self, *, output_layouts: Any, desired_output_layouts: Any, use_local_output: bool = True
    ) -> Any:
        """Style: lays the outputs out anew after the module ran; arguments and errors as for ``PrepareModuleInput``."""

    def PrepareModuleInputOutput(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict[str, Any] | None = None,
        desired_input_kwarg_layouts: dict[str, Any] | None = None,
        use_local_input: bool = False,
        output_layouts: Any,
        desired_output_layouts: Any,
        use_local_output: bool = True,
    ) -> Any:
        """Style: both of the last two; ``use_local_input`` says whether the module gets plain local tensors."""

    def attention_heads_per_rank(self, heads: int, kv_heads: int, tp_size: int) -> tuple[int, int]:
        """Query heads and key-value heads that each of ``tp_size`` ranks has under ``ColwiseParallel`` projections.

        Heads are dealt out contiguously, so that each rank has whole groups of queries with their keys.

        Raises:
            ValueError: the heads do not divide by the key-value heads, or either of them by the ranks; the message
                names both numbers.
        """
