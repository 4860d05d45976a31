"""Faults that show only where sharded layers have a divided sequence, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_STYLES = "hyper_parallel_tests.engines.torch_native.context_parallel.styles"


@fault(
    id="ix-sharding-takes-the-gradient-on-its-way",
    symptom="With asynchronous transfers in sharded layers projections do not train: their gradient comes too late.",
    capability="context_parallel",
    layer="l3",
    must_fail=["IX-06"],
    ranks="all",
)
def sharding_takes_the_gradient_on_its_way(patch: Patch) -> None:
    waiting: dict[int, Any] = {}

    @patch.around(f"{_STYLES}:AsyncContextParallel._send_off", parameters=("self", "what", "projection"))
    def send_off(original: Any, self: Any, what: str, projection: Any, *args: Any) -> None:
        original(self, what, projection, *args)
        waiting[id(projection)] = next(reversed(projection._backward_pre_hooks))

    @patch.around("torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState.init", parameters=("self", "modules"))
    def init(original: Any, self: Any, modules: Any, *args: Any, **kwargs: Any) -> None:
        original(self, modules, *args, **kwargs)
        for inner in (inner for outer in modules for inner in outer.modules()):
            if inner._backward_pre_hooks.pop(waiting.get(id(inner)), None) is not None:
                patch.reached()


@fault(
    id="ix-divided-sequences-stay-gathered",
    symptom="Layers whose sequence is divided need more memory than others: they stay gathered after their forward.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-06"],
    ranks="all",
)
def divided_sequences_stay_gathered(patch: Patch) -> None:
    divided: set[int] = set()

    @patch.around(f"{_STYLES}:ContextParallel.apply", parameters=("self", "module"))
    def apply(original: Any, self: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        divided.add(id(module))
        return original(self, module, *args, **kwargs)

    @patch.around("torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.reshard", parameters=("self",))
    def reshard(original: Any, self: Any) -> None:
        parts = (part for module in self.modules for part in module.modules())
        if self._training_state.name == "FORWARD" and any(id(one) in divided for one in parts):
            patch.reached()
            return
        original(self)
