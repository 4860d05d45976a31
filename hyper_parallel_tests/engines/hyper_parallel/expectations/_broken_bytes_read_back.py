"""Bytes are written as they are, and at the load taken for a pickle."""

import tempfile

import torch.distributed as dist
from hyper_parallel.core.checkpoint import load, save

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        save({"b": b"\x00\xff"}, checkpoint_id=f"{folder}/checkpoint")
        try:
            load({"b": None}, checkpoint_id=f"{folder}/checkpoint")
        except Exception as error:
            print("expected the bytes, got", repr(error))
