"""Port of deferred initialization: models without storage, and how they get it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn


class InitWeights(Protocol):
    """Models that are made on the meta device, divided there, and given storage for this rank's parts alone.

    A deferred tensor has shape, dtype and ``requires_grad``, but no storage. It gets storage from
    ``init_parameters``, from ``module.to_empty(device=...)`` without values, or from loading a state dict.
    """

    def init_empty_weights(self, include_buffers: bool = False) -> AbstractContextManager[None]:
        """Context in which parameters of new modules are deferred; buffers are too with ``include_buffers``.

        A parameter is deferred when a module registers it: what it held is dropped, and what is written to
        it later has no effect. Modules that share a parameter go on sharing it.
        """

    def init_on_device(self, device: torch.device | str, include_buffers: bool = False) -> AbstractContextManager[None]:
        """Context in which parameters of new modules, and buffers with ``include_buffers``, move to ``device``.

        ``init_empty_weights`` is this with device "meta". Of nested contexts the innermost decides.
        """

    def init_parameters(self, module: nn.Module, stage_index: int = 0) -> nn.Module:
        """Gives every deferred parameter and buffer of the tree storage and the values that it would have had.

        Calls ``reset_parameters()`` of each module that has deferred tensors of its own, children before
        their parent, siblings in order of registration, while its own parameters are whole. These are the
        values of an ordinary start if each module draws its numbers at the end of its constructor, as
        PyTorch's own do. Each rank keeps its part. What is not deferred stays as it is.

        The random state is the default generator's, which must be the same on all ranks. A parameter of
        several modules keeps the first one's values; the others draw theirs too, as in the constructor.

        Args:
            module: divided or not; divided parameters go to their mesh's device, others to torch's default device.
            stage_index: of the pipeline stage that this is. 0 continues the random state, others start at the
                default generator's seed plus the index and leave the state alone.

        Returns:
            ``module``, the same object with the same parameter objects.

        Raises:
            ValueError: no module, or a negative index.
            TypeError: a module has deferred tensors but no ``reset_parameters``; names it, nothing has changed.
        """
