"""Faults of loss parallelism on torch_native."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault

_LOSS = "torch.distributed.tensor.parallel.loss"
_FORWARD = ("x", "target", "weight", "local_weight", "reduction", "ignore_index", "input_shape")
_BACKWARD = ("grad_output", "x", "target", "weight", "reduction", "ignore_index", "total_weight")
_MEAN = 1


@fault(
    id="tp-normalized-over-own-classes",
    symptom="The loss starts lower than log(vocabulary) by log(ranks), and logits of different ranks drift apart.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-03"],
    ranks="all",
)
def normalized_over_own_classes(patch: Patch) -> None:
    @patch.around(f"{_LOSS}:_log_softmax", parameters=("x", "dim", "half_to_float", "mesh", "mesh_dim"))
    def log_softmax(_: Any, x: Any, dim: int, half_to_float: bool, mesh: Any, mesh_dim: int) -> Any:
        patch.reached()
        return F.log_softmax(x, dim)


@fault(
    id="tp-ignored-targets-counted",
    symptom="The more padding a batch has, the smaller is its loss.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-03"],
    ranks="all",
)
def ignored_targets_counted(patch: Patch) -> None:
    @patch.around(f"{_LOSS}:_nll_loss_forward", parameters=_FORWARD)
    def forward(original: Any, x: Any, target: Any, *others: Any) -> Any:
        loss, total = original(x, target, *others)
        weight, _, reduction, ignored = others[:4]
        kept = (target != ignored).sum()
        if reduction != _MEAN or weight is not None or kept == target.numel():
            return loss, total
        patch.reached()
        return loss * kept / target.numel(), total * 0 + target.numel()


@fault(
    id="tp-gradient-without-weights",
    symptom="Weights of the classes change the loss that is shown, but not what is learned.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-03"],
    ranks="all",
)
def gradient_without_weights(patch: Patch) -> None:
    @patch.around(f"{_LOSS}:_nll_loss_and_log_softmax_backward", parameters=_BACKWARD)
    def backward(original: Any, grad_output: Any, x: Any, target: Any, weight: Any, *others: Any) -> Any:
        if weight is not None:
            patch.reached()
        return original(grad_output, x, target, None, *others)


@fault(
    id="tp-loss-parallel-stays-on",
    symptom="After a first training step evaluation outside of the context fails, or computes by its rules.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-03"],
    ranks="all",
)
def loss_parallel_stays_on(patch: Patch) -> None:
    handlers = DTensor._op_dispatcher._custom_op_handlers

    @patch.around(f"{_LOSS}:_disable_custom_loss_ops")
    def disable(_: Any) -> None:
        patch.reached()

    kept = dict(handlers)
    patch.at_the_end(lambda: (handlers.clear(), handlers.update(kept)))
