"""Faults of resumable data on torch_native: a place or an order that is another one behind a restart."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_DATA = "hyper_parallel_tests.engines.torch_native.resumable_data:StatefulDataLoader"


@fault(
    id="resume-place-of-the-batch-behind",
    symptom="Each restart skips a batch, as if it had been fetched ahead.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def place_of_the_batch_behind(patch: Patch) -> None:
    @patch.around(f"{_DATA}.state_dict", parameters=("self",))
    def state(original: Any, self: Any) -> dict[str, Any]:
        patch.reached()
        found = original(self)
        ahead = found["position"] + self._batch_size * self._size
        return found | ({"position": ahead} if ahead < found["rows"] else {"position": 0, "epoch": found["epoch"] + 1})


@fault(
    id="resume-place-counted-in-batches",
    symptom="On another number of ranks rows are seen twice, or never.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def place_counted_in_batches(patch: Patch) -> None:
    @patch.around(f"{_DATA}.state_dict", parameters=("self",))
    def state(original: Any, self: Any) -> dict[str, Any]:
        found = original(self)
        return found | {"position": found["position"] // (self._batch_size * self._size)}

    @patch.around(f"{_DATA}.load_state_dict", parameters=("self", "state_dict"))
    def load(original: Any, self: Any, state_dict: Any) -> None:
        patch.reached()
        original(self, state_dict | {"position": state_dict["position"] * self._batch_size * self._size})


@fault(
    id="resume-one-order-for-all-epochs",
    symptom="Every epoch has the order of the first.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def one_order_for_all_epochs(patch: Patch) -> None:
    @patch.around(f"{_DATA}._order", parameters=("self",))
    def order(original: Any, self: Any) -> list[int]:
        patch.reached()
        epoch, self.epoch = self.epoch, 0
        try:
            return original(self)
        finally:
            self.epoch = epoch


@fault(
    id="resume-other-data-accepted",
    symptom="A run goes on with other data in the middle of an epoch, and nobody is told.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def other_data_accepted(patch: Patch) -> None:
    @patch.around(f"{_DATA}.load_state_dict", parameters=("self", "state_dict"))
    def load(original: Any, self: Any, state_dict: Any) -> None:
        if "rows" in state_dict and state_dict["rows"] != self._rows:
            patch.reached()
            state_dict = state_dict | {"rows": self._rows}
        original(self, state_dict)


@fault(
    id="resume-end-of-epoch-left-out",
    symptom="The rows at the end of each epoch that fill no batch are never seen.",
    capability="resume",
    layer="l1",
    must_fail=["RS-1-01"],
)
def end_of_epoch_left_out(patch: Patch) -> None:
    @patch.around(f"{_DATA}._close_epoch", parameters=("self",))
    def close(original: Any, self: Any) -> None:
        if not self._drop_last and 0 < self._rows - self.position < self._batch_size * self._size:
            patch.reached()
            self.epoch, self.position = self.epoch + 1, 0
        original(self)
