"""A checkpoint of an unknown version of the format is loaded."""

import pickle
import tempfile
from pathlib import Path

import torch.distributed as dist
from hyper_parallel.core.checkpoint import load, save

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        metadata = save({"n": 1}, checkpoint_id=f"{folder}/checkpoint")
        metadata.version = "99.0"
        Path(f"{folder}/checkpoint/.metadata").write_bytes(pickle.dumps(metadata))
        state = {"n": 0}
        load(state, checkpoint_id=f"{folder}/checkpoint")
        print("expected an error with the version, got", state)
