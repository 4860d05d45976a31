"""Outputs of micro-batches with different names are merged with each other, as long as there are equally many."""

import torch
from torch.distributed.pipelining.microbatch import merge_chunks

try:
    merged = merge_chunks([{"logits": torch.zeros(1)}, {"hidden": torch.ones(1)}], None)
except ValueError as refusal:
    print(refusal)
else:
    print(f"logits of one micro-batch and hidden of the other: {merged}")
    raise AssertionError("two outputs became one")
