"""The random state that cases and jobs start from, the same on every rank."""

from __future__ import annotations

import random
import sys

SEED = 20240229


def seed_all(device: str) -> None:
    """Seed every generator that is there; `device` is cpu, cuda or npu."""
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        # torch.manual_seed() keeps a stack for each kind of accelerator that is not there, for every case anew.
        torch.default_generator.manual_seed(SEED)
        if device != "cpu":
            torch.get_device_module(device).manual_seed_all(SEED)
