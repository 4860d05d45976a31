"""Faults that show only where sharded parameters were deferred and a checkpoint is loaded, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-updates-lost-after-a-load",
    symptom="A model that was made without storage stands still after a load: updates go where forward does not read.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-10"],
    ranks="all",
)
def updates_lost_after_a_load(patch: Patch) -> None:
    deferred: set[int] = set()
    loaded: set[int] = set()
    from_disk: list[bool] = []

    @patch.around("torch.distributed.checkpoint.filesystem:FileSystemReader.read_data", parameters=("self", "plan"))
    def read(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        from_disk.append(True)
        return original(self, *args, **kwargs)

    @patch.around("torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.reset_sharded_param", parameters=("self",))
    def reset(original: Any, self: Any) -> None:
        had_no_storage = self._sharded_param_data.is_meta
        original(self)
        if had_no_storage:
            deferred.add(id(self.sharded_param))
        if id(self.sharded_param) in loaded:
            patch.reached()
            self._sharded_param_data = self._sharded_param_data.clone()

    @patch.around("torch.distributed.checkpoint.state_dict:_load_model_state_dict", parameters=("model", "state_dict"))
    def load(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(model, *args, **kwargs)
        if from_disk:
            loaded.update(deferred & set(map(id, model.parameters())))
        return result
