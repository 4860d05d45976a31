"""A file whose import ends rank 1."""

from __future__ import annotations

import os

print("importing", flush=True)
if os.environ["RANK"] == "1":
    os._exit(3)


def test_nothing(world):
    pass
