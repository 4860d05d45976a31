"""A load runs code: values that are no tensors, and the metadata, are pickles of anything."""

import tempfile

import torch.distributed as dist
from hyper_parallel.core.checkpoint import load, save


class RunsCode:
    def __reduce__(self):
        return print, ("  code of the checkpoint is run",)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        save({"value": RunsCode()}, checkpoint_id=f"{folder}/checkpoint")
        print("expected an error, got")
        load({"value": None}, checkpoint_id=f"{folder}/checkpoint")
        dist.destroy_process_group()
