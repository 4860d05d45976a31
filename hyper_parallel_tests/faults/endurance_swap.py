"""Faults of activation swap that show after many steps of one layer only, on torch_native."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from hyper_parallel_tests.faults import Patch, fault

# More steps than a case of a lower layer trains one layer.
_FIRST, _EVERY = 30, 10


@fault(
    id="endurance-swap-threads-stay",
    symptom="Some thread that copies never ends: after a day the process may start no further one.",
    capability="activation_swap",
    layer="l4",
    must_fail=["EN-01"],
    ranks="all",
)
def threads_stay(patch: Patch) -> None:
    steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
    over = threading.Event()
    patch.at_the_end(over.set)

    @patch.around(
        "hyper_parallel_tests.engines.torch_native.activation_swap.manager:_Manager._before_backward",
        parameters=("self", "place"),
    )
    def before_backward(original: Any, self: Any, place: Any) -> None:
        original(self, place)
        step = steps[place] = steps.get(place, -1) + 1
        if step >= _FIRST and step % _EVERY == 0:
            patch.reached()
            threading.Thread(target=over.wait, name="a copy that never ends", daemon=True).start()
