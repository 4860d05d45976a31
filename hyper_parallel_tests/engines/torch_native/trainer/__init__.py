"""The trainer of torch_native: a plain reference for the layer that ties the capabilities together.

PyTorch has none. Parallel training, checkpoints and clipping are those of the other capabilities; what is here is the
loop, its callbacks, its configuration, and the state that makes a run go on where another one ended.
"""

from __future__ import annotations

from hyper_parallel_tests.engines.torch_native.trainer.callbacks import Callback
from hyper_parallel_tests.engines.torch_native.trainer.config import (
    check_parallel_degrees,
    dump_training_config,
    parse_training_args,
    parse_training_config,
    training_config_reference,
)
from hyper_parallel_tests.engines.torch_native.trainer.loop import BaseTrainer

__all__ = [
    "BaseTrainer",
    "Callback",
    "check_parallel_degrees",
    "dump_training_config",
    "parse_training_args",
    "parse_training_config",
    "training_config_reference",
]
