"""Faults of pipelines on torch_native that change what stages learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_parallel"
_SCHEDULES = "torch.distributed.pipelining.schedules"
_STAGE = "torch.distributed.pipelining.stage"


@fault(
    id="pp-gradients-divided-by-micro-batches",
    symptom="Training is slower the more micro-batches there are: sums of gradients are divided by their number.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    ranks="all",
)
def gradients_divided_by_micro_batches(patch: Patch) -> None:
    @patch.around(f"{_STAGE}:_PipelineStageBase.perform_reduce_grad", parameters=("self", "grad_scale_factor"))
    def reduce(original: Any, self: Any, grad_scale_factor: int) -> None:
        patch.reached()
        original(self, self.chunks)


@fault(
    id="pp-targets-of-the-next-micro-batch",
    symptom="The loss does not go down: the last stage holds each micro-batch against the targets of the next one.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    ranks="all",
)
def targets_of_the_next_micro_batch(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:_PipelineSchedule._split_inputs", parameters=("self", "args", "kwargs"))
    def split(original: Any, self: Any, args: Any, kwargs: Any = None) -> Any:
        inputs, named = original(self, args, kwargs)
        if kwargs:
            patch.reached()
            named = [*named[1:], named[0]]
        return inputs, named


@fault(
    id="pp-one-buffer-for-all-micro-batches",
    symptom="The loss is right at step 0; then weights learn from the activations of whichever micro-batch came last.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
)
def one_buffer_for_all_micro_batches(patch: Patch) -> None:
    @patch.around(f"{_STAGE}:PipelineStage._setup_forward_recv_info", parameters=("self", "num_microbatches"))
    def prepare(original: Any, self: Any, num_microbatches: int, has_backward: bool) -> None:
        original(self, num_microbatches, has_backward)
        if not self.is_first and num_microbatches > 1:
            patch.reached()
            for chunk in range(1, num_microbatches):
                for info, first in zip(self.args_recv_info[chunk], self.args_recv_info[0], strict=True):
                    info.buffer.set_(first.buffer.untyped_storage(), 0, first.buffer.shape)


@fault(
    id="pp-run-forgets-earlier-gradients",
    symptom="Accumulation over runs has no effect: only the last run's gradients reach the optimizer.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    ranks="all",
)
def run_forgets_earlier_gradients(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:_Schedule.run", parameters=("self",))
    def run(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        for parameter in (one for stage in self._stages for one in stage.submod.parameters()):
            if parameter.grad is not None:
                patch.reached()
            parameter.grad = None
        return original(self, *args, **kwargs)


@fault(
    id="pp-evaluation-of-one-micro-batch",
    symptom="Evaluation tells less than it seems: its outputs are those of the first micro-batch, again and again.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
)
def evaluation_of_one_micro_batch(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:_PipelineSchedule.eval", parameters=("self",))
    def evaluate(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if found:
            patch.reached()
            return found[:1] * len(found)
        return found


@fault(
    id="pp-copies-learn-apart",
    symptom="A tied embedding and its output drift apart: neither stage has the other's gradient.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
    ranks="all",
)
def copies_learn_apart(patch: Patch) -> None:
    _summed(patch, lambda original, self: None)


@fault(
    id="pp-copies-summed-twice",
    symptom="Tied weights take steps that are too large: the sum of their gradients is summed again.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
    ranks="all",
)
def copies_summed_twice(patch: Patch) -> None:
    def twice(original: Callable[[Any], None], self: Any) -> None:
        original(self)
        original(self)

    _summed(patch, twice)


def _summed(patch: Patch, instead: Callable[[Callable[[Any], None], Any], None]) -> None:
    @patch.around(f"{_OURS}.shared:SharedParameters.sum_gradients", parameters=("self",))
    def add(original: Any, self: Any) -> None:
        if self._copies:
            patch.reached()
        instead(original, self)


@fault(
    id="pp-earlier-sum-summed-again",
    symptom="With accumulation over runs tied weights learn too fast: each run sums what the runs before have summed.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
    ranks="all",
)
def earlier_sum_summed_again(patch: Patch) -> None:
    @patch.around(f"{_OURS}.shared:SharedParameters.set_aside", parameters=("self",))
    def keep(original: Any, self: Any) -> None:
        self._earlier = [None] * len(self._parameters())
        if any(one.grad is not None for one in self._parameters()):
            patch.reached()


@fault(
    id="pp-copies-start-apart",
    symptom="The loss is NaN from the start, or a random one: the last stage's copy of a tied weight has other values.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
)
def copies_start_apart(patch: Patch) -> None:
    @patch.around(f"{_OURS}.shared:SharedParameters.take_values_of_the_first", parameters=("self",))
    def take(original: Any, self: Any) -> None:
        if self._copies:
            patch.reached()


@fault(
    id="pp-two-copies-taken-for-one",
    symptom="Of two weights that the same stages share, one is not tied: it starts at random and drifts.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
)
def two_copies_taken_for_one(patch: Patch) -> None:
    @patch.around(f"{_OURS}.shared:SharedParameters.__init__", parameters=("self", "stages"))
    def make(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        for key in [key for key in self._copies if key[1]]:
            patch.reached()
            del self._copies[key]


@fault(
    id="pp-losses-keep-their-graph",
    symptom="Memory grows as long as losses are collected: each one holds the graph of its micro-batch.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
)
def losses_keep_their_graph(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:_Together._merge_outputs", parameters=("self", "output_chunks"))
    def merge(original: Any, self: Any, output_chunks: list[Any]) -> list[Any]:
        patch.reached()
        return list(output_chunks)
