"""Faults that show only where what a stage has received is swapped, on torch_native."""

from __future__ import annotations

import weakref
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-host-copy-of-an-earlier-message",
    symptom="From the second step on a stage's first layer learns from what the stage received in the first one.",
    capability="activation_swap",
    layer="l3",
    must_fail=["IX-15"],
    ranks="any",
)
def host_copy_of_an_earlier_message(patch: Patch) -> None:
    # A copy of what nobody has written to since is made once. Of what comes by message versions are not counted.
    copied: dict[tuple[StorageWeakRef, int], Any] = {}

    @patch.around("hyper_parallel_tests.engines.torch_native.activation_swap.saved:Saved.leave", parameters=("self",))
    def leave(original: Any, self: Any) -> None:
        if self._alias is None:
            return original(self)
        key = StorageWeakRef(self._alias.untyped_storage()), self._alias._version
        original(self)
        # Those who count what is on the device must not see this.
        with _disable_current_modes():
            if key in copied and not key[0].expired():
                patch.reached()
                self.there.bytes().copy_(copied[key])
            else:
                copied[key] = self.there.bytes().clone()
        return None


@fault(
    id="ix-later-micro-batches-stay-on-the-device",
    symptom="In a pipeline swap saves memory for the first micro-batch alone: the others are copied and stay as well.",
    capability="activation_swap",
    layer="l3",
    must_fail=["IX-15"],
    ranks="all",
)
def later_micro_batches_stay_on_the_device(patch: Patch) -> None:
    kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @patch.around(
        "hyper_parallel_tests.engines.torch_native.activation_swap.saved:SwapGroup.wait_offload", parameters=("self",)
    )
    def wait(original: Any, self: Any) -> None:
        if any(one.state.name == "HOST" for one in self._members):
            for one in self._members:
                if one.state.name == "LEAVING":
                    patch.reached()
                    kept[one] = one.here
        original(self)
