"""Model state dicts: HyperParallel's, with PyTorch's options."""

from __future__ import annotations

from torch.distributed.checkpoint.state_dict import StateDictOptions

from hyper_parallel_tests.engines.hyper_parallel.library import offered

__all__ = ["StateDictOptions", "get_model_state_dict", "set_model_state_dict"]

get_model_state_dict = offered(
    "hyper_parallel:get_model_state_dict",
    "hyper_parallel.core.fully_shard.api:get_model_state_dict",
    reason="in this version of the library a rank has module.state_dict() of its parts alone",
)
set_model_state_dict = offered(
    "hyper_parallel:set_model_state_dict",
    "hyper_parallel.core.fully_shard.api:set_model_state_dict",
    reason="this version of the library loads by module.load_state_dict alone",
)
