"""The trainer, which newer versions of HyperParallel have. Callbacks alone are bound: it makes its models by itself."""

from __future__ import annotations

from hyper_parallel_tests.engines.hyper_parallel.library import find, offered
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "BaseTrainer",
    "Callback",
    "check_parallel_degrees",
    "dump_training_config",
    "parse_training_args",
    "parse_training_config",
    "training_config_reference",
]

_NONE_YET = "this version of the library has no trainer"
_there = find("hyper_parallel.trainer.base:BaseTrainer", "hyper_parallel.trainer:BaseTrainer") is not None


def _not_bound(why: str) -> Unsupported:
    return Unsupported(why if _there else _NONE_YET)


Callback = offered(
    "hyper_parallel.trainer.callbacks.base:Callback", "hyper_parallel.trainer.callbacks:Callback", reason=_NONE_YET
)
BaseTrainer = _not_bound("the library's trainer makes its models, optimizers and data by itself from its configuration")
parse_training_args = parse_training_config = _not_bound("the library's configurations have other keys")
dump_training_config = _not_bound("the library writes no configuration")
training_config_reference = _not_bound("the library lists no settings")
check_parallel_degrees = _not_bound("the library checks degrees while it makes a trainer")
