"""Faults that show only in the state of layers that are divided and sharded, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-moments-of-copies-on-the-first",
    symptom="After a restart norms of a divided sequence drift apart: one rank of the layer alone has their moments.",
    capability="optim_state_dict",
    layer="l3",
    must_fail=["IX-03"],
    ranks="all",
)
def moments_of_copies_on_the_first(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.checkpoint.state_dict:set_optimizer_state_dict", parameters=("model", "optimizers")
    )
    def load(original: Any, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(model, optimizer, *args, **kwargs)
        for state in optimizer.state.values():
            for one in state.values():
                mesh = getattr(one, "device_mesh", None)
                if mesh is not None and mesh.ndim == 2 and one.placements[1].is_replicate():
                    patch.reached()
                    if mesh.get_local_rank(1):
                        one.to_local().zero_()
