"""Faults that show only where sharded layers are trained on packed and divided sequences, on torch_native."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState"


@fault(
    id="ix-documents-of-the-first-step",
    symptom="Sharded layers go wrong on packed sequences after the first step, whose documents tokens go on to see.",
    capability="context_parallel",
    layer="l3",
    must_fail=["IX-20"],
    ranks="all",
)
def documents_of_the_first_step(patch: Patch) -> None:
    # The sharded layer in whose forward the attention runs -> its first documents.
    kept: dict[Any, Any] = {}
    inside: list[Any] = []

    @patch.around(f"{_STATE}._pre_forward", parameters=("self", "module", "args", "kwargs"))
    def pre_forward(original: Any, self: Any, *args: Any) -> Any:
        inside.append(self)
        return original(self, *args)

    @patch.around(f"{_STATE}._post_forward", parameters=("self", "module", "input", "output"))
    def post_forward(original: Any, self: Any, *args: Any) -> Any:
        inside.remove(self)
        return original(self, *args)

    @patch.around(
        "hyper_parallel_tests.engines.torch_native.context_parallel:context_parallel_attention",
        parameters=("q", "k", "v", "device_mesh"),
    )
    def attention(original: Any, *args: Any, documents: Any = None, **options: Any) -> Any:
        if inside and documents is not None:
            first = kept.setdefault(inside[-1], documents)
            if not torch.equal(first, documents):
                patch.reached()
            documents = first
        return original(*args, documents=documents, **options)
