"""A file whose import does not come to an end on rank 1."""

from __future__ import annotations

import os
import threading

if os.environ["RANK"] == "1":
    threading.Event().wait()


def test_nothing(world):
    pass
