"""Faults that show only where regions are swapped, on torch_native."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from hyper_parallel_tests.faults import Patch, fault

_SWAP = "hyper_parallel_tests.engines.torch_native.activation_swap"


@fault(
    id="ix-swapped-regions-come-back-at-once",
    symptom="With swap and recomputation backward needs as much memory as without swap: all inputs come back at once.",
    capability="activation_swap",
    layer="l3",
    must_fail=["IX-09"],
    ranks="all",
)
def swapped_regions_come_back_at_once(patch: Patch) -> None:
    regions: set[str] = set()

    @patch.around(f"{_SWAP}.manager:_Manager._begin", parameters=("self", "layer", "place"))
    def begin(original: Any, self: Any, layer: Any, place: Any) -> None:
        if isinstance(getattr(layer, "_checkpoint_wrapped_module", None), CheckpointWrapper):
            regions.add(place.name)
        original(self, layer, place)

    @patch.around(f"{_SWAP}.manager:_Manager._before_backward", parameters=("self", "place"))
    def before_backward(original: Any, self: Any, place: Any) -> None:
        for name in sorted(regions & self._groups.keys()):
            patch.reached()
            self.launch_load(name)
        original(self, place)
