"""Port of activation swap: what backward needs waits in host memory, and comes back before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


class ActivationSwap(Protocol):
    """Saved tensors in groups, a layer a group, which are moved to host memory in forward and back in backward.

    What is moved is a storage, once, however many saved tensors view it; each comes back with its value, dtype,
    device, shape, strides and offset. The device's storage is free as soon as nobody else holds it. A storage that
    several layers save moves with the last of them. Nothing is held when backward is through with it, or when the
    graph is dropped.
    """

    ActivationPolicy: Any
    """What becomes of a saved tensor: ``SAVE`` leaves it where it is, ``SWAP`` lets it move with its group."""

    def swap_wrapper(self, module: nn.Module, policy_fn: Callable[[Tensor], Any] | None = None) -> nn.Module:
        """A module that calls ``module`` and puts what it saves into the group whose turn it is.

        State dicts have the names that they have without it. Without gradients, nothing is saved and nothing moves.

        Args:
            policy_fn: gets each tensor that may be swapped, in the order of saving, and gives an ``ActivationPolicy``;
                without it all are swapped.

        Raises:
            TypeError: ``module`` is none, or ``policy_fn`` no function; in forward: it gave no ``ActivationPolicy``.
            RuntimeError: in backward: a saved tensor was not loaded, or one has been written to since it was saved,
                swapped or not.
        """

    def base_check_fn(self, tensor: Tensor, *, min_bytes: int = 1, dtypes: frozenset[Any] | None = None) -> bool:
        """Whether a tensor may be swapped: one plain storage that is not empty, and no parameter or view of one.

        Args:
            min_bytes: of its storage; smaller ones stay.
            dtypes: those that may be swapped; None for all.

        Raises:
            TypeError: ``dtypes`` is one dtype.
        """

    def SwapManager(self) -> Any:
        """The manager of this process.

        ``set_current_group_name(name)``, ``get_current_group_name()``: the group whose turn it is; "" at first.

        ``launch_offload(name)``, ``launch_load(name)``: start the copies of a group beside the computation, of what is
        not there already; RuntimeError if they cannot start. ``wait_offload(name)``: returns when they are done, the
        device's storages are free then. ``wait_load(name)``: returns when all is on the device, and starts the copies
        that nobody has started. A copy that failed raises RuntimeError in the next wait. RuntimeError too for a name
        that is no group's, and where a tensor has been written to after it was saved and before it was copied.

        ``set_forward_prefetch_layer(first, second)``: makes each a group of its own, by hooks, and orders them, as
        often as it is called. After a layer's forward its group is offloaded, if there is a layer behind it, and the
        previous one's awaited. Before its backward the previous one's load is launched, and then its own awaited.
        The last layer's group is needed at once and stays. A layer that is run once more in backward moves nothing.
        Neither layers nor models are held by their order; a layer that is gone is nobody's neighbour.

        TypeError for a name that is no string, and for what is no layer; ValueError for the same layer twice.
        """

    def set_swap_fusion(self, enable: bool) -> AbstractContextManager[None]:
        """Context in which a group's storages are offloaded by one copy into one host buffer, and loaded by one.

        They share one storage on the device then, which is free when all of them are through.

        Raises:
            TypeError: ``enable`` is neither True nor False.
        """

    def watch_swap_copies(self, *, held: bool = False) -> AbstractContextManager[list[tuple[str, int]]]:
        """Context that gives the copies done in it, in order: ("offload" or "load", bytes).

        Args:
            held: no copy is done before somebody waits for it, and where it goes there is nothing of use till then.
        """

    def plan_swap_groups(self, layer_bytes: Mapping[str, int], capacity: int) -> tuple[tuple[str, ...], ...]:
        """Groups of neighbouring layers, in their order, each as long as its bytes allow.

        Args:
            layer_bytes: layers in the order of forward, and the bytes that each swaps.
            capacity: the most bytes of one group. Two neighbouring groups are on the device at once.

        Raises:
            ValueError: a layer alone has more than the capacity, or a negative number; names it with both.
        """

    def plan_swap_steps(self, groups: int) -> list[str]:
        """What is done with so many groups in one training step, e.g. "forward 0: launch_offload 0", in order.

        Raises:
            ValueError: a negative number.
        """

    def generate_swap_policy(self, layer_bytes: Mapping[str, int], memory_budget: int) -> tuple[str, ...]:
        """Layers to swap, in the order of forward, so that a step fits into a budget; no more than it takes.

        At a layer's turn the device holds its own bytes, those of the layer before it, which are on their way, and of
        the layers before that those that are not swapped. The earliest layers are idle longest and go first; the last
        two never go, since they would be fetched at once.

        Args:
            layer_bytes: layers in the order of forward, and the bytes that each saves.
            memory_budget: bytes that may be on the device at once.

        Raises:
            ValueError: no choice fits; has the budget and the least that would do. Or a layer has a negative number.
        """
