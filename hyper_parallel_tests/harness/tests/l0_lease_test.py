"""Cards of a shared host are leased: all or none, never twice, and free again when their holder is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hyper_parallel_tests.harness.lease import NoCards, lease, present


@pytest.fixture
def host(tmp_path: Path) -> dict[str, str]:
    """A host with four cards and a folder of locks of its own."""
    return {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "HYPER_PARALLEL_TESTS_LEASES": str(tmp_path)}


def test_two_launches_side_by_side_never_share_a_card(host):
    """Each of two launches of two cards sees two cards of its own, lowest first."""
    with lease("cuda", 2, host, limit_s=5) as first, lease("cuda", 2, host, limit_s=5) as second:
        assert first == {"CUDA_VISIBLE_DEVICES": "0,1"}
        assert second == {"CUDA_VISIBLE_DEVICES": "2,3"}


def test_a_launch_takes_all_of_its_cards_or_none(host):
    """A launch that cannot have all holds none while it waits, and says what was missing when its time is up."""
    with lease("cuda", 3, host, limit_s=5):
        with pytest.raises(NoCards, match="only 1 of 2 cuda cards were free"), lease("cuda", 2, host, limit_s=0):
            pass
        with lease("cuda", 1, host, limit_s=5) as single:
            assert single == {"CUDA_VISIBLE_DEVICES": "3"}


def test_cards_are_free_again_after_use(host):
    """A lease that has ended can be taken by the next launch."""
    for _ in range(2):
        with lease("cuda", 4, host, limit_s=0) as visible:
            assert visible == {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}


def test_the_death_of_a_holder_frees_its_cards(host):
    """A launch that is killed leaves nothing locked."""
    program = (
        "import sys\n"
        "from hyper_parallel_tests.harness.lease import lease\n"
        f"with lease('cuda', 4, {host!r}, limit_s=5):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NoCards), lease("cuda", 1, host, limit_s=0):
            pass
        holder.kill()
    with lease("cuda", 4, host, limit_s=5) as visible:
        assert visible == {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}


def test_more_cards_than_the_host_has(host):
    """Waiting would not help, so it is an error at once that names both numbers."""
    shown = r"8 cuda cards are needed and this host shows 4 \(0, 1, 2, 3\)"
    with pytest.raises(NoCards, match=shown), lease("cuda", 8, host, limit_s=60):
        pass


def test_the_runtimes_variable_limits_what_is_there():
    """An empty variable shows no card, whatever the host has."""
    assert present("npu", {"ASCEND_RT_VISIBLE_DEVICES": "4, 6"}) == ["4", "6"]
    assert present("cuda", {"CUDA_VISIBLE_DEVICES": ""}) == []


def test_a_cpu_needs_no_lease(tmp_path: Path):
    """On the CPU nothing is locked and no variable is set."""
    with lease("cpu", 64, {"HYPER_PARALLEL_TESTS_LEASES": str(tmp_path)}, limit_s=0) as visible:
        assert visible == {}
    assert list(tmp_path.iterdir()) == []
