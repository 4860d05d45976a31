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

    def parallelize_module(self, module: nn.Module, device_mesh: DeviceMeshMembers, parallelize_plan: Any) -> nn.Module:
        """Divides ``module`` in place over a mesh of one dimension.

        Real parameters are taken from the group's first rank, the others' values do not matter. Parameters
        on the meta device stay there, divided in shape alone.

        Args:
            module: of which the plan's keys are parts.
            device_mesh: of one dimension, e.g. ``mesh["tp"]``.
            parallelize_plan: a style for the module itself, or module path -> style; a path may have
                wildcards (``blocks.*.ffn.up``).

        Returns:
            ``module``, the same object.

        Raises:
            ValueError: the mesh has more than one dimension.
            TypeError: the plan is neither a style nor a dict of them.
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
            input_layouts: placement of the first input; None means ``Shard(-1)``.
            output_layouts: placement of the output; None means ``Replicate()``, by an all-reduce.
            use_local_output: as for ``ColwiseParallel``.

        Raises:
            NotImplementedError: on use for a module that is neither Linear nor Embedding.
        """
