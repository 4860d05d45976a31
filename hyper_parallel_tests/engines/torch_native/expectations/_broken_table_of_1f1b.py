"""The last stage of 1F1B begins with micro-batch 1 in its table, and ends with one that does not exist."""

from types import SimpleNamespace

from torch.distributed.pipelining import Schedule1F1B

order = Schedule1F1B(SimpleNamespace(num_stages=4), 8).pipeline_order
forward = [
    action.microbatch_index for action in order[3] if action is not None and action.computation_type.value == "F"
]

print(f"the last of 4 stages computes of 8 micro-batches forward: {forward}")
assert forward == list(range(8))
