"""The fault catalogue: deliberate defects that the net must notice.

Modules such as `faults/collectives.py` declare faults with `@fault(...)`; `fault_test` targets prove that the named
contracts fail under them.
"""

from __future__ import annotations

from hyper_parallel_tests.faults.catalogue import Fault, apply, catalogue, catalogues, fault, find
from hyper_parallel_tests.faults.patch import FaultDoesNotFit, Patch

__all__ = ["Fault", "FaultDoesNotFit", "Patch", "apply", "catalogue", "catalogues", "fault", "find"]
