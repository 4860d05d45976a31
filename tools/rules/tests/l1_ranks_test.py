"""What torchrun_test promises about the ranks."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def test_there_is_one_rank_per_card(world):
    """The target's name says two cards, so two ranks meet."""
    count = torch.ones(1, device=world.device)
    dist.all_reduce(count)
    assert count.item() == world.size == 2


def test_ranks_meet_on_the_loopback():
    """No rank looks for the host's name or another network."""
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["TP_SOCKET_IFNAME"] == "lo"
