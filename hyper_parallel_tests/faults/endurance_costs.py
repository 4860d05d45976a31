"""Faults that change no value, no message and no order, and cost time or memory alone, on torch_native."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OVER = 40


@fault(
    id="endurance-costs-copies-of-a-message",
    symptom="Sharded training is slower than it was: what a gather brought is copied out many times over.",
    capability="fully_shard",
    layer="l4",
    must_fail=["EN-04"],
    ranks="all",
)
def copies_of_a_message(patch: Patch) -> None:
    @patch.around(
        f"{_FSDP}._fsdp_param_group:foreach_all_gather_copy_out",
        parameters=("all_gather_result", "fsdp_params", "group"),
    )
    def copy_out(original: Any, all_gather_result: Any, fsdp_params: Sequence[Any], group: Any) -> None:
        patch.reached()
        for _ in range(_OVER):
            original(all_gather_result, fsdp_params, group)


@fault(
    id="endurance-costs-messages-kept",
    symptom="Less fits on a card than before: what is gathered in backward stays there until its end.",
    capability="fully_shard",
    layer="l4",
    must_fail=["EN-04"],
    ranks="all",
)
def messages_kept(patch: Patch) -> None:
    kept: list[Any] = []
    patch.at_the_end(kept.clear)

    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.unshard", parameters=("self", "async_op"))
    def unshard(original: Any, self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if self._all_gather_result is not None and self._training_state.name == "PRE_BACKWARD":
            patch.reached()
            kept.append(self._all_gather_result.all_gather_output)

    @patch.around(f"{_FSDP}._fsdp_state:FSDPState._root_post_backward_final_callback", parameters=("self",))
    def callback(original: Any, self: Any) -> None:
        original(self)
        kept.clear()


@fault(
    id="endurance-costs-copies-of-a-group",
    symptom="Swap takes the processor from the computation: a group is copied anew for each tensor in it.",
    capability="activation_swap",
    layer="l4",
    must_fail=["EN-04"],
    ranks="all",
)
def copies_of_a_group(patch: Patch) -> None:
    @patch.around(
        "hyper_parallel_tests.engines.torch_native.activation_swap.copies:Transfer._work",
        parameters=("self", "copies"),
    )
    def work(original: Any, self: Any, copies: Sequence[Any]) -> None:
        self._wanted.wait()
        for _ in copies[1:]:
            patch.reached()
            for to, source in copies:
                to.bytes().copy_(source.bytes())
        original(self, copies)
