"""The rendezvous of ranks that all run on this host."""

from __future__ import annotations

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

_LOOPBACK = "127.0.0.1"


class OneHost(RendezvousHandler):
    """One agent, one store on a free port of the loopback device: there is nobody to agree with.

    torch's own handlers for a single host either want a port that somebody has found free before (static), or wait
    for a random time so that many agents do not ask at once (c10d).
    """

    def __init__(self) -> None:
        self._store: TCPStore | None = None
        self._round = 0

    def get_backend(self) -> str:
        return "one_host"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            self._store = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
        self._round += 1
        where = RendezvousStoreInfo(_LOOPBACK, self._store.port)
        return RendezvousInfo(PrefixStore(f"round_{self._round}", self._store), 0, 1, where)

    def is_closed(self) -> bool:
        return self._store is None and self._round > 0

    def set_closed(self) -> None:
        self.shutdown()

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "hyper_parallel_tests"

    def shutdown(self) -> bool:
        self._store = None
        return True
