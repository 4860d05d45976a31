"""A number in a distributed checkpoint whose bit has flipped, or a file of another save, is loaded without an error."""

import shutil
import struct
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

if __name__ == "__main__":
    root = Path(tempfile.mkdtemp())
    for name, value in (("one", 1.5), ("two", 2.5)):
        dcp.save({"weight": torch.full((4,), value)}, checkpoint_id=root / name)
    file, state = root / "one" / "__0_0.distcp", {"weight": torch.zeros(4)}
    file.write_bytes(file.read_bytes().replace(struct.pack("<f", 1.5), struct.pack("<f", 1.75), 1))
    dcp.load(state, checkpoint_id=root / "one")
    print("flipped bit: expected an error, got", state["weight"])
    shutil.copy(root / "two" / "__0_0.distcp", file)
    dcp.load(state, checkpoint_id=root / "one")
    print("file of another save: expected an error, got", state["weight"])
    shutil.rmtree(root)
