"""Faults of pipelines on torch_native that change what stages learn."""

from __future__ import annotations

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


@fault(
    id="pp-shapes-of-the-first-run",
    symptom="Stages for shapes that change take those of the first run for all others: the next one ends in an error.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    watchdog=8,
)
def shapes_of_the_first_run(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:_Schedule._prepare_anew", parameters=("self",))
    def prepare(original: Any, self: Any) -> None:
        patch.reached()
