"""A load that fails for a missing or truncated file has filled what the others hold, and may not name the file."""

import os
import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp

if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    writer = dcp.FileSystemWriter(folder, single_file_per_rank=False)
    dcp.save({"first": torch.ones(3), "second": torch.ones(3)}, storage_writer=writer)
    state = {"first": torch.zeros(3), "second": torch.zeros(3)}
    os.truncate(f"{folder}/__0_1.distcp", 100)
    try:
        dcp.load(state, checkpoint_id=folder)
    except dcp.api.CheckpointException as error:
        print("expected an error that names __0_1.distcp, got", str(error).strip().splitlines()[-1])
    print("expected zeros in both, got", state)
    shutil.rmtree(folder)
