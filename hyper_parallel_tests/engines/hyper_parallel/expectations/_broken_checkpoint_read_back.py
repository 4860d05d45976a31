"""A checkpoint cannot be read back with the tensors that were saved: pickles are called safetensors."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.checkpoint import load, save

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        save({"weight": torch.ones(2)}, checkpoint_id=f"{folder}/checkpoint")
        state = {"weight": torch.zeros(2)}
        try:
            load(state, checkpoint_id=f"{folder}/checkpoint")
            print(f"expected ones, got {state['weight'].tolist()}")
        except Exception as error:
            print(f"expected to read what was saved, got {error}")
