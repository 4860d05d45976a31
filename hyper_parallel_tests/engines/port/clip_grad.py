"""Port of gradient clipping by the global norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class ClipGrad(Protocol):
    """Gradients scaled together, so that their norm over the whole model stays within a bound."""

    def clip_grad_norm_(
        self,
        parameters: nn.Module | Tensor | Iterable[Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
        *,
        pp_mesh: DeviceMeshMembers | None = None,
    ) -> Tensor:
        """Multiplies all gradients in place by ``min(1, max_norm / (norm + 1e-6))``; collective.

        ``norm`` is that of the full gradients of all parameters, strung together to one vector. Each element
        counts once: shards are joined over the ranks that hold them, copies are not added up. Parameters may
        lie on different meshes, as those of experts do beside the dense ones.

        A parameter that requires no gradient is left alone, even if it still has one. A parameter without a
        gradient counts as zero; sharded parameters may lack theirs on some ranks alone.

        Args:
            parameters: on each rank the same parameters in the same order, but for pipeline stages. Of a
                parameter that has a ``main_grad`` other than None that one is meant, and ``grad`` left alone.
                It is laid out over the ranks as the parameter is, in any floating-point dtype.
            max_norm: at least 0.
            norm_type: above 0, or infinity, which is the largest magnitude.
            error_if_nonfinite: whether a norm that is infinite or NaN is an error. If not, gradients are
                multiplied by what comes of it: 0 for an infinite norm, NaN for NaN.
            foreach: whether to use operations on lists of tensors; None leaves it to the engine. Changes no
                more than rounding.
            pp_mesh: one dimension, the stages of a pipeline, each of which brings its own parameters.

        Returns:
            The norm before clipping: a plain scalar, equal on all ranks.

        Raises:
            TypeError: with all gradients untouched, on each rank that has a plain tensor as the ``main_grad`` of
                a parameter on a mesh: it does not tell whose part it is, so its norm would be one rank's.
            RuntimeError: on every rank, with all gradients untouched, for a norm that is not finite if
                ``error_if_nonfinite``.
        """
