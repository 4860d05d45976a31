"""Trace on one process: hooks, collectives of a simulated group, storage of a small engine, live tensors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from hyper_parallel_tests.harness.judging import trace
from hyper_parallel_tests.harness.judging.trace import live as live_module
from hyper_parallel_tests.models.mlp import mlp


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """A default process group of four ranks that exist in name only; this is rank 1."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


# -- hooks


def test_hooks_are_seen_in_order():
    """Forward goes in and out of the nested modules, backward the other way round."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with trace.hooks(model) as events:
        output = model(torch.ones(1, 2, requires_grad=True))
        events.mark("loss")
        output.sum().backward()
    assert events == [
        "forward_pre root",
        "forward_pre 0",
        "forward 0",
        "forward_pre 1",
        "forward 1",
        "forward root",
        "loss",
        "backward_pre root",
        "backward_pre 1",
        "backward 1",
        "backward_pre 0",
        "backward 0",
        "backward root",
    ]
    assert events.of("0") == ["forward_pre", "forward", "backward_pre", "backward"]
    assert events.only("forward") == ["forward 0", "forward 1", "forward root"]


def test_hooks_are_bypassed_by_forward_itself():
    """A direct call of forward leaves no event of that module, as no hook of it runs."""
    model = nn.Sequential(nn.Linear(2, 2))
    with trace.hooks(model) as events:
        model.forward(torch.ones(1, 2))
    assert events == ["forward_pre 0", "forward 0"]


def test_hooks_are_gone_after_the_block():
    """Nothing stays on the modules, also where the block raises."""
    model = mlp()
    with pytest.raises(RuntimeError, match="on purpose"), trace.hooks(model) as events:
        raise RuntimeError("on purpose")
    model(torch.ones(1, 16)).sum().backward()
    assert events == []
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


# -- collectives


STARTS = {
    "all_reduce sum float32 16B": lambda t: dist.all_reduce(t),
    "all_reduce max float32 16B": lambda t: dist.all_reduce(t, op=dist.ReduceOp.MAX),
    "all_reduce sum bfloat16 8B": lambda t: dist.all_reduce(t.bfloat16()),
    "all_reduce sum int64 48B": lambda t: dist.all_reduce(torch.ones(2, 3).long()),
    "all_gather float32 16B": lambda t: dist.all_gather([torch.empty(4) for _ in range(4)], t),
    "reduce_scatter avg float32 16B": lambda t: dist.reduce_scatter(
        torch.empty(1), list(t.chunk(4)), op=dist.ReduceOp.AVG
    ),
    "all_to_all float32 16B": lambda t: dist.all_to_all_single(torch.empty(4), t),
    "broadcast float32 16B from 2": lambda t: dist.broadcast(t, src=2),
    "reduce sum float32 16B to 3": lambda t: dist.reduce(t, dst=3),
    "gather float32 16B to 0": lambda t: dist.gather(t, dst=0),
    "scatter float32 16B from 0": lambda t: dist.scatter(t, src=0),
    "send float32 16B to 0": lambda t: dist.send(t, dst=0),
    "recv float32 16B from 3": lambda t: dist.recv(t, src=3),
    "barrier": lambda t: dist.barrier(),
}


@pytest.mark.parametrize("line", STARTS)
@pytest.mark.usefixtures("four_ranks")
def test_every_collective_has_its_line(line):
    """Operation, reduction, dtype, this rank's bytes, peer and group of each collective."""
    with trace.collectives() as sent:
        STARTS[line](torch.ones(4))
    assert sent.lines() == [f"{line} over (0, 1, 2, 3)"]


@pytest.mark.usefixtures("four_ranks")
def test_functional_collectives_are_seen_once_also_in_backward():
    """A functional collective is one record, and so is what its gradient sends."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    parameter = torch.ones(4, requires_grad=True)
    with trace.collectives() as sent:
        output = all_to_all_single_autograd(parameter, [1] * 4, [1] * 4, dist.group.WORLD)
        assert sent.ops() == ["all_to_all"]
        (output * 2).sum().backward()
    assert sent.ops() == ["all_to_all", "all_to_all"]


@pytest.mark.usefixtures("four_ranks")
def test_collectives_of_a_subgroup_carry_its_global_ranks():
    """The group and the peer are told by global ranks, and `over` picks a group."""
    group = dist.new_group([1, 3])
    with trace.collectives() as sent:
        dist.all_reduce(torch.ones(2), group=group)
        dist.broadcast(torch.ones(2), src=3, group=group)
        dist.all_reduce(torch.ones(2))
    assert sent.lines()[1] == "broadcast float32 8B from 3 over (1, 3)"
    assert sent.ops(over=(1, 3)) == ["all_reduce", "broadcast"]
    assert sent.ops(over=(0, 1, 2, 3)) == ["all_reduce"]
    assert sent.of("all_reduce")[0].shapes == ((2,),)
    assert (len(sent), sent[0].bytes) == (3, 8)


class Summed(torch.Tensor):
    """A tensor that sends by itself as distributed tensors do: each operation costs an all-reduce."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Summed:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        dist.all_reduce(args[0].inner)
        return func(args[0].inner)


@pytest.mark.usefixtures("four_ranks")
def test_collectives_of_tensor_subclasses_are_seen():
    """What a subclass sends while it carries out an operation is seen, and once."""
    tensor = Summed(torch.ones(2))
    with trace.collectives() as sent:
        tensor.neg()
    assert sent.ops() == ["all_reduce"]


@pytest.mark.usefixtures("four_ranks")
def test_collectives_end_with_the_block():
    """What comes after the block is not recorded, and what is no collective never."""
    with trace.collectives() as sent:
        torch.ones(2) + 1
    dist.all_reduce(torch.ones(2))
    assert sent.lines() == []


# -- storage, of an engine in a few lines that gathers before and frees after


class Gathering(nn.Module):
    """One parameter that is whole in use only; `leaky` keeps the whole one's memory."""

    def __init__(self, leaky: bool) -> None:
        super().__init__()
        self.shard = nn.Parameter(torch.ones(2))
        self.weight = self.shard
        self.leaky = leaky
        self.register_forward_pre_hook(lambda *_: self.gather())
        self.register_forward_hook(lambda *_: self.free())

    def gather(self) -> None:
        self.whole = torch.ones(8)
        self.weight = nn.Parameter(self.whole)

    def free(self) -> None:
        if not self.leaky:
            self.whole.untyped_storage().resize_(0)
        self.weight = self.shard

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.weight.sum()


def test_storage_is_seen_and_its_end_too():
    """The gathered parameter counts while it is there and not after it is freed."""
    model = nn.Sequential(Gathering(leaky=False), nn.Linear(1, 1))
    with trace.storage(model) as storage:
        model(torch.ones(1, 1))
    assert storage.lines() == [
        "forward_pre root: 0B",
        "forward_pre 0: 32B (0.weight)",
        "forward 0: 0B",
        "forward_pre 1: 0B",
        "forward 1: 0B",
        "forward: 0B",
    ]
    assert storage.unsharded_bytes_after("forward_pre 0") == 32
    assert storage.peak() == 32


def test_storage_that_is_kept_counts_although_the_module_forgot_it():
    """A gathered parameter whose memory stays is seen after the module shows its shard again."""
    model = nn.Sequential(Gathering(leaky=True))
    with trace.storage(model) as storage:
        model(torch.ones(1, 1)).sum().backward()
    assert storage.unsharded_after("forward") == {"0.weight": 32}
    assert storage.unsharded_bytes_after("backward") == 32


def test_storage_that_is_dropped_counts_as_freed():
    """An engine may free by letting go: the trace keeps nothing alive."""
    model = Gathering(leaky=True)
    with trace.storage(model) as storage:
        model(torch.ones(1, 1))
        assert storage.unsharded_bytes_after("forward") == 32
        model.whole = None
        gc.collect()
        storage.sample("dropped")
    assert storage.unsharded_bytes_after("dropped") == 0


class FreeingAtTheEnd(Gathering):
    """Gathers before forward and frees after backward, by a callback that the last gradient queues."""

    def free(self) -> None:
        self.weight = self.shard

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        whole = self.whole
        queue = torch.autograd.Variable._execution_engine.queue_callback
        inputs.register_hook(lambda _: queue(lambda: whole.untyped_storage().resize_(0)))
        return super().forward(inputs)


def test_storage_is_sampled_after_the_engines_own_end_of_backward():
    """What an engine frees in its end-of-backward callback is freed in the sample, also if queued late."""
    model = FreeingAtTheEnd(leaky=True)
    with trace.storage(model) as storage:
        model(torch.ones(1, 1, requires_grad=True) * 2).sum().backward()
    assert storage.unsharded_bytes_after("backward_pre root") == 32
    assert storage.unsharded_bytes_after("backward") == 0


def test_storage_samples_backward_by_module_and_at_its_end():
    """Every module's gradient, and the end of each backward pass, have a sample."""
    model = mlp(depth=2)
    with trace.storage(model) as storage:
        for _ in range(2):
            model(torch.ones(1, 16)).sum().backward()
    events = [event for event, _ in storage.samples]
    once = ["backward_pre root", "backward_pre layers.1", "backward_pre layers.0", "backward"]
    assert sorted(event for event in events if "backward" in event) == sorted(2 * once)
    assert events[-1] == "backward"


def test_storage_of_plain_parameters_is_not_unsharded():
    """A module without an engine has nothing unsharded, whatever it computes."""
    model = mlp()
    with trace.storage(model) as storage:
        model(torch.ones(1, 16)).sum().backward()
    assert storage.peak() == 0


def test_storage_asks_the_engine_where_it_hides_its_parameters():
    """With `unsharded` the engine tells the bytes."""
    held = {"w": 0}
    model = nn.Linear(1, 1)
    model.register_forward_pre_hook(lambda *_: held.update(w=64))
    with trace.storage(model, unsharded=held.items) as storage:
        model(torch.ones(1, 1))
    assert storage.unsharded_after("forward") == {"w": 64}


def test_storage_event_that_never_happened_is_no_zero():
    """Asking for a sample that does not exist fails and lists those that do."""
    with trace.storage(mlp(depth=1)) as storage:
        storage.sample("here")
    with pytest.raises(AssertionError, match="'backward' never happened; what happened is here"):
        storage.unsharded_bytes_after("backward")


# -- live tensors


def test_live_tensors_counts_what_a_block_leaves():
    """What is made and kept counts with its bytes, what is dropped does not; views share their storage."""
    with trace.live_tensors() as live:
        kept = torch.ones(10)
        view = kept[2:]
        torch.ones(1000)
        assert live.grown() == 40
        assert sorted(live.describe()) == ["float32[10]", "float32[8]"]
        del kept, view
        assert live.new() == []
        assert live.grown() == 0


def test_live_tensors_awaits_what_another_thread_lets_go_of():
    """Bytes that are expected are waited for, as long as a thread that still runs holds more."""
    with trace.live_tensors() as live:
        held, asked = [torch.ones(1000)], threading.Event()
        thread = threading.Thread(target=lambda: (asked.wait(), held.clear()))
        thread.start()
        kept = torch.ones(10)
        assert live.grown() == 4040
        asked.set()
        assert live.grown(awaited=40) == 40
        thread.join()
    assert kept.shape == (10,)


def test_live_tensors_waits_for_an_end_only(monkeypatch):
    """What is not let go of is told as it is, after the time that a backend may take."""
    monkeypatch.setattr(live_module, "_LETTING_GO_S", 0)
    with trace.live_tensors() as live:
        kept = torch.ones(10)
        assert live.grown(awaited=0) == kept.nbytes


def test_live_tensors_watches_by_weak_reference():
    """A watched tensor is named as long as something else keeps it."""
    with trace.live_tensors() as live:
        first, second = torch.ones(1), torch.ones(2)
        live.watch("first", first)
        live.watch("second", second)
        assert live.alive() == ["first", "second"]
        del first
        assert live.alive() == ["second"]


def test_live_tensors_sees_cycles_as_gone():
    """Garbage that only the collector can free is no leak."""
    with trace.live_tensors() as live:
        cycle = [torch.ones(3)]
        cycle.append(cycle)
        del cycle
        assert live.grown() == 0


def test_live_tensors_counts_all():
    """Count and bytes include what was there before."""
    mine = torch.ones(256)
    with trace.live_tensors() as live:
        before = live.count(), live.bytes()
        more = torch.ones(256)
        assert (live.count() - before[0], live.bytes() - before[1]) == (1, 1024)
    assert mine.shape == more.shape
