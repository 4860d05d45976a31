"""Metadata of a distributed checkpoint that have a tensor in a file outside of its folder are followed."""

import pickle
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

if __name__ == "__main__":
    root = Path(tempfile.mkdtemp())
    for name, value in (("mine", 1.0), ("theirs", 2.0)):
        dcp.save({"weight": torch.full((3,), value)}, checkpoint_id=root / name)
    metadata = pickle.loads((root / "mine" / ".metadata").read_bytes())
    for place in metadata.storage_data.values():
        place.relative_path = "../theirs/" + place.relative_path
    (root / "mine" / ".metadata").write_bytes(pickle.dumps(metadata))
    state = {"weight": torch.zeros(3)}
    dcp.load(state, checkpoint_id=root / "mine")
    print("expected an error, got", state["weight"], "of another folder")
    shutil.rmtree(root)
