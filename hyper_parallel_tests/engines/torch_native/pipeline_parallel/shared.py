"""Parameters that several stages have, each its own copy: PyTorch's pipelines have nothing for them.

A tied weight w that stages a and b use has the gradient dL/dw = dL/dw_a + dL/dw_b, where w_a and w_b are their copies.
Each stage computes its own term as a sum over the micro-batches, and the terms are added at the end of the run. They
are added in the order of the stages everywhere, so that all copies get the same bits. Copies that are sharded lie alike
on the ranks of their stages, so that each rank exchanges its shard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

__all__ = ["SharedParameterInfo", "SharedParameters", "exchange"]


class SharedParameterInfo:
    """See the port."""

    def __init__(self, parameter: nn.Parameter, shared_stage: Sequence[int]) -> None:
        if not isinstance(parameter, nn.Parameter):
            raise TypeError(f"parameter must be a Parameter, not {type(parameter).__name__}")
        if not isinstance(shared_stage, (list, tuple)):
            raise TypeError(f"shared_stage must be a list or tuple of stages, not {type(shared_stage).__name__}")
        self.parameter, self.shared_stage = parameter, tuple(shared_stage)


class SharedParameters:
    """Those of one rank's stages.

    Args:
        stages: this rank's.
        stage_to_rank: rank of the group that has each stage.
    """

    def __init__(self, stages: Sequence[Any], stage_to_rank: dict[int, int], group: ProcessGroup | None) -> None:
        self._group = group
        # Those of the same stages are told apart by the order in which each stage names them.
        self._copies: dict[tuple[tuple[int, ...], int], dict[int, nn.Parameter]] = defaultdict(dict)
        for stage in stages:
            numbers: dict[tuple[int, ...], int] = defaultdict(int)
            for info in stage.shared_parameters:
                key = (info.shared_stage, numbers[info.shared_stage])
                numbers[info.shared_stage] += 1
                self._copies[key][stage.stage_index] = info.parameter
        self._homes = stage_to_rank
        self._earlier: list[Tensor | None] = []

    def take_values_of_the_first(self) -> None:
        """Make all copies equal; collective among those who have them."""
        for stages, copies in self._in_order():
            values = self._of_all_stages(stages, {index: _own(one) for index, one in copies.items()})
            for one in copies.values():
                _own(one).copy_(values[0])

    def set_aside(self) -> None:
        """Put away what the gradients were before a run, which has been summed already."""
        self._earlier = [one.grad for one in self._parameters()]
        for one in self._parameters():
            one.grad = None

    def put_back(self) -> None:
        """Add it again."""
        for one, earlier in zip(self._parameters(), self._earlier, strict=True):
            if earlier is not None:
                one.grad = earlier if one.grad is None else earlier + one.grad
        self._earlier = []

    def sum_gradients(self) -> None:
        """Give each copy the sum of the gradients of all; collective among those who have them."""
        for stages, copies in self._in_order():
            if not next(iter(copies.values())).requires_grad:
                continue
            own: dict[int, Tensor] = {}
            counted: set[int] = set()
            for index, one in sorted(copies.items()):
                # What two stages of a rank have as one parameter has the gradient of both already.
                again = one.grad is None or id(one) in counted
                own[index] = torch.zeros_like(_own(one)) if again else _own(one.grad)
                counted.add(id(one))
            total = torch.stack(self._of_all_stages(stages, own)).sum(0)
            for one in copies.values():
                if one.grad is None:
                    one.grad = torch.zeros_like(one)
                _own(one.grad).copy_(total)

    def _in_order(self) -> list[tuple[tuple[int, ...], dict[int, nn.Parameter]]]:
        return [(key[0], self._copies[key]) for key in sorted(self._copies)]

    def _parameters(self) -> list[nn.Parameter]:
        return list({id(one): one for copies in self._copies.values() for one in copies.values()}.values())

    def _of_all_stages(self, stages: tuple[int, ...], own: dict[int, Tensor]) -> list[Tensor]:
        """The tensors of all `stages`, in their order, of which this rank has `own`."""
        mine = torch.stack([own[index] for index in sorted(own)])
        ranks = {index: self._homes[index] for index in stages}
        counts = {rank: sorted(index for index in stages if ranks[index] == rank) for rank in set(ranks.values())}
        buffers = {rank: mine.new_empty((len(held), *mine.shape[1:])) for rank, held in counts.items()}
        found = exchange(mine, buffers, self._group)
        return [found[ranks[index]][counts[ranks[index]].index(index)] for index in stages]


def _own(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor, as a view without a gradient."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def exchange(mine: Tensor, buffers: dict[int, Tensor], group: ProcessGroup | None) -> dict[int, Tensor]:
    """What each rank of `buffers` has given; collective among them.

    Args:
        mine: this rank's.
        buffers: rank of the group -> where to put its tensor; this rank's own is not used.
    """
    me = dist.get_rank(group)
    mine = mine.contiguous()
    operations = [
        operation
        for rank, buffer in buffers.items()
        if rank != me
        for operation in (
            dist.P2POp(dist.isend, mine, group=group, group_peer=rank),
            dist.P2POp(dist.irecv, buffer, group=group, group_peer=rank),
        )
    ]
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
    return {**buffers, me: mine}
