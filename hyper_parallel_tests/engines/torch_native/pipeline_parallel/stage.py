"""Stages of torch_native: PyTorch's, with HyperParallel's arguments, that fail together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, pipelining
from torch.distributed.pipelining._utils import validate_and_normalize_to_tuple
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.engines.torch_native.pipeline_parallel.agreement import Failure
from hyper_parallel_tests.engines.torch_native.pipeline_parallel.shared import SharedParameterInfo

__all__ = ["PipelineStage"]


class PipelineStage(pipelining.PipelineStage):
    """See the port.

    A stage that raises goes on without computing: it sends zeros in the place of its results until all ranks have come
    to the end of the run, and there all of them raise. So nobody waits, and no message is left over for the next run.

    Attributes:
        failure: what this stage has raised in this run.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        stage_num: int,
        device: torch.device | None = None,
        group: ProcessGroup | None = None,
        *,
        dyn_shape: bool = False,
        has_backward: bool = True,
        shared_parameters: SharedParameterInfo | Sequence[SharedParameterInfo] | None = None,
    ) -> None:
        super().__init__(submodule, stage_index, stage_num, device or _device_of(submodule), group=group)
        self.dyn_shape, self.trains = dyn_shape, has_backward
        self.shared_parameters = _checked(shared_parameters)
        self.failure: Failure | None = None

    def start_again(self) -> None:
        """Forget what an earlier run left behind."""
        self.failure = None
        self.bwd_cache.clear()
        self.backward_state.clear()
        self.dw_runner.clear()

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: Any, kwargs: Any = None, save_forward_output: bool = True
    ) -> Any:
        """PyTorch's."""
        if self.failure is None:
            try:
                outputs = super().forward_one_chunk(fwd_chunk_id, args, kwargs, save_forward_output)
                self._check_shapes(fwd_chunk_id)
                return outputs
            except Exception as error:
                self._fail(f"the forward of micro-batch {fwd_chunk_id}", error)
        outputs = tuple(torch.zeros(one.shape, dtype=one.dtype, device=self.device) for one in self._stage_meta.outputs)
        self.fwd_cache[fwd_chunk_id] = (outputs, [])
        return outputs[0] if len(outputs) == 1 else outputs

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """PyTorch's."""
        if self.failure is None:
            try:
                return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
            except Exception as error:
                self._fail(f"the backward of micro-batch {bwd_chunk_id}", error)
        self.fwd_cache.pop(bwd_chunk_id, None)
        self.bwd_cache[bwd_chunk_id] = (None,) * len(self._stage_meta.inputs)
        return None

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """PyTorch's."""
        if self.failure is None:
            try:
                super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            except Exception as error:
                self._fail(f"the weights' backward of micro-batch {bwd_chunk_id}", error)

    def _compute_outputs(self, *args: Tensor, module: nn.Module, **kwargs: Any) -> Any:
        # PyTorch's way to learn the shapes, in which a stage sees for the first time what the one before gives.
        if self.failure is None:
            try:
                return validate_and_normalize_to_tuple(super()._compute_outputs(*args, module=module, **kwargs))
            except Exception as error:
                taken = ", ".join(str(tuple(one.shape)) for one in args)
                self._fail(f"its first forward, of inputs {taken}", error)
        return torch.zeros(1, device=self.device, requires_grad=True)

    def _compute_input_grads(self, outputs: Any, all_fwd_inputs: Any, grad_outputs: Any = None) -> Any:
        if self.failure is None:
            try:
                return super()._compute_input_grads(outputs, all_fwd_inputs, grad_outputs)
            except Exception as error:
                self._fail("its first backward", error)
        return (None,) * len(all_fwd_inputs)

    def _check_shapes(self, fwd_chunk_id: int) -> None:
        """What the next stage is not prepared for must not be sent."""
        # Of distributed tensors PyTorch notes the local shapes, which are what it sends.
        outputs = [one.to_local() if isinstance(one, DTensor) else one for one in self.fwd_cache[fwd_chunk_id][0]]
        found, due = ([(tuple(one.shape), one.dtype) for one in some] for some in (outputs, self._stage_meta.outputs))
        if not self.is_last and found != due:
            raise ValueError(f"the outputs must be those of the first run in shape and type, {due}, not {found}")

    def _fail(self, what: str, error: Exception) -> None:
        self.failure = Failure(self.stage_index, what, error)


def _device_of(module: nn.Module) -> torch.device:
    return next((one.device for one in module.parameters()), torch.device("cpu"))


def _checked(shared: Any) -> list[SharedParameterInfo]:
    listed = list(shared) if isinstance(shared, (list, tuple)) else [] if shared is None else [shared]
    wrong = [type(one).__name__ for one in listed if not isinstance(one, SharedParameterInfo)]
    if wrong:
        raise TypeError(f"shared_parameters takes SharedParameterInfo or a list of them, not {', '.join(wrong)}")
    return listed
