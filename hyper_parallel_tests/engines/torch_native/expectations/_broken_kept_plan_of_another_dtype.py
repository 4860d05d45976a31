"""A tensor that is converted between two saves with kept plans has its old dtype in the metadata."""

import tempfile

import torch
import torch.distributed.checkpoint as dcp

if __name__ == "__main__":
    for dtype in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory() as folder:
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            metadata = dcp.save({"t": torch.ones(2, dtype=dtype)}, checkpoint_id=folder, planner=planner, no_dist=True)
        print("expected", dtype, "got", metadata.state_dict_metadata["t"].properties.dtype)
