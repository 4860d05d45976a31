"""Faults of activation swap on torch_native: as what saved tensors come back, and which ones go."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_swap"
_SAVED = f"{_OURS}.saved:Saved"
_HANDLE = f"{_OURS}.saved:Handle"


@fault(
    id="swap-strides-lost",
    symptom="Gradients through transposed activations are wrong: they come back as if they were contiguous.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def strides_lost(patch: Patch) -> None:
    @patch.around(f"{_HANDLE}.__init__", parameters=("self", "tensor", "saved"))
    def init(original: Any, self: Any, tensor: Any, saved: Any) -> None:
        original(self, tensor, saved)
        plain = torch.empty(tensor.shape, device="meta").stride()
        if plain != self._stride and 0 not in self._stride:
            patch.reached()
            self._stride, self._offset = plain, 0


@fault(
    id="swap-offset-lost",
    symptom="Gradients through slices are those of the first rows.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def offset_lost(patch: Patch) -> None:
    @patch.around(f"{_HANDLE}.__init__", parameters=("self", "tensor", "saved"))
    def init(original: Any, self: Any, tensor: Any, saved: Any) -> None:
        original(self, tensor, saved)
        if self._offset:
            patch.reached()
            self._offset = 0


@fault(
    id="swap-views-go-twice",
    symptom="Swap copies more than it saves: attention's tensors go once for each of their views.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def views_go_twice(patch: Patch) -> None:
    @patch.around(f"{_SAVED}.holds", parameters=("self", "tensor"))
    def holds(_: Any, self: Any, tensor: Any) -> bool:
        patch.reached()
        return False


@fault(
    id="swap-buffers-go",
    symptom="Swap copies the module's tables and detached weights too, and frees nothing by it.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def buffers_go(patch: Patch) -> None:
    @patch.around(f"{_OURS}.wrapper:id_of", parameters=("tensor",))
    def id_of(_: Any, tensor: Any) -> int:
        patch.reached()
        return id(tensor)


@fault(
    id="swap-written-tensor-unnoticed",
    symptom="An in-place operation that autograd refuses trains with wrong gradients under swap.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def written_tensor_unnoticed(patch: Patch) -> None:
    @patch.around(f"{_SAVED}.check_unwritten", parameters=("self",))
    def check(_: Any, self: Any) -> None:
        patch.reached()


@fault(
    id="swap-absent-tensor-is-zeros",
    symptom="Gradients of layers that were not fetched in time are zero.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def absent_tensor_is_zeros(patch: Patch) -> None:
    @patch.around(f"{_HANDLE}.tensor", parameters=("self",))
    def tensor(original: Any, self: Any) -> Any:
        if self.saved.state.name == "DEVICE":
            return original(self)
        patch.reached()
        return torch.zeros(self._size, dtype=self._dtype, device=self.saved.device)


@fault(
    id="swap-memory-in-use-given-away",
    symptom="Activations that the loss still reads turn into rubbish once their copies are on the host.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def memory_in_use_given_away(patch: Patch) -> None:
    @patch.around(f"{_SAVED}.leave", parameters=("self",))
    def leave(original: Any, self: Any) -> None:
        patch.reached()
        here = self.here
        original(self)
        here.bytes().fill_(0x7F)


@fault(
    id="swap-packs-in-another-order",
    symptom="Policies that count saved tensors choose others than planned.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def packs_in_another_order(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:SwapGroup._in", parameters=("self", "state"))
    def members(original: Any, self: Any, state: Any) -> Any:
        found = original(self, state)
        if len(found) > 1:
            patch.reached()
        return found[::-1]


@fault(
    id="swap-written-tensor-that-stays-unnoticed",
    symptom="An optimizer that steps between forward and backward trains with wrong gradients under swap.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def written_tensor_that_stays_unnoticed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:Kept.tensor", parameters=("self",))
    def tensor(_: Any, self: Any) -> Any:
        patch.reached()
        return self._alias


@fault(
    id="swap-memory-filled-anew-is-old",
    symptom="With an input buffer that is filled anew for each step, gradients are those of a step before.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-01"],
)
def memory_filled_anew_is_old(patch: Patch) -> None:
    @patch.around(f"{_SAVED}.holds", parameters=("self", "tensor"))
    def holds(original: Any, self: Any, tensor: Any) -> bool:
        if not original(self, tensor):
            patch.reached()
        return True
