"""An object with state_dict and load_state_dict is pickled whole, and replaced at the load."""

import tempfile

import torch.distributed as dist
from hyper_parallel.core.checkpoint import load, save
from torch import nn

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        layer, other = nn.Linear(1, 1), nn.Linear(1, 1)
        save({"layer": layer}, checkpoint_id=f"{folder}/checkpoint")
        state = {"layer": other}
        load(state, checkpoint_id=f"{folder}/checkpoint")
        print(
            "expected the same layer with the saved weight, got", state["layer"] is other, other.weight == layer.weight
        )
