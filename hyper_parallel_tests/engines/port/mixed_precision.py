"""Port of loss scaling, which training in fp16 needs. Dtypes are the policy's of ``fully_shard``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup


class GradScalerMembers(Protocol):
    """A loss scale that keeps small gradients above fp16's smallest number and gives way to overflow.

    One step: ``scale(loss).backward()``, ``step(optimizer)``, ``update()``.
    """

    def scale(self, outputs: Tensor) -> Tensor:
        """``outputs`` times the scale, in their dtype."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the optimizer's gradients by the scale, in place; collective.

        Needed only by those who look at gradients between backward and step, e.g. to clip them.

        Raises:
            RuntimeError: called twice in one step, or after ``step``.
        """

    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        """Unscales unless that is done, then steps, unless a gradient of any rank is NaN or infinite; collective.

        Ranks decide alike: all step or none.
        """

    def update(self) -> None:
        """Ends the step: backs the scale off after a skipped one, lets it grow after enough in a row."""

    def get_scale(self) -> float:
        """The scale, equal on all ranks."""


class MixedPrecision(Protocol):
    """Loss scaling over ranks."""

    def ShardedGradScaler(
        self,
        device: str = "cuda",
        *,
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: ProcessGroup | None = None,
    ) -> GradScalerMembers:
        """Makes a scaler.

        Args:
            device: type of the device that gradients are on.
            init_scale: the first scale.
            backoff_factor: below 1, multiplies the scale after a skipped step.
            growth_factor: above 1, multiplies it after ``growth_interval`` steps in a row.
            enabled: whether to scale at all; if not, ``step`` only steps.
            process_group: ranks that step together; None is the default group.
        """
