"""What really happened while a block of a case ran, as sequences that read like what a case expects.

Each of these is a context manager; the recording stays readable after the block.

    with trace.collectives() as sent: ...    sent.ops() == ["all_gather", "reduce_scatter"]
    with trace.hooks(model) as events: ...   events == ["forward_pre fc1", "forward fc1", ...]
    with trace.storage(model) as storage: ...   storage.unsharded_bytes_after("forward") == 0
    with trace.live_tensors() as live: ...   live.grown() == 0
    with trace.made() as made: ...   made.held() == trace.size_of(4, 8)
"""

from hyper_parallel_tests.harness.judging.trace.collectives import Collective, Collectives, collectives
from hyper_parallel_tests.harness.judging.trace.hooks import Events, hooks
from hyper_parallel_tests.harness.judging.trace.live import LiveTensors, live_tensors
from hyper_parallel_tests.harness.judging.trace.made import Made, made, size_of
from hyper_parallel_tests.harness.judging.trace.storage import Storage, storage

__all__ = [
    "Collective",
    "Collectives",
    "Events",
    "LiveTensors",
    "Made",
    "Storage",
    "collectives",
    "hooks",
    "live_tensors",
    "made",
    "size_of",
    "storage",
]
