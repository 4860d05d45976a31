"""A load runs code: that of .metadata, which is a pickle, of any value that is no tensor, and of a converted file."""

import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp


class RunsCode:
    def __reduce__(self):
        return print, ("  code of the checkpoint is run",)


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    dcp.save({"weight": torch.ones(3), "value": RunsCode()}, checkpoint_id=folder / "dcp")
    print("a value: expected an error, got")
    dcp.load({"weight": torch.zeros(3), "value": None}, checkpoint_id=folder / "dcp")
    torch.save({"value": RunsCode()}, folder / "one.pt")
    print("torch_save_to_dcp: expected an error, got")
    torch_save_to_dcp(folder / "one.pt", folder / "converted")
    shutil.rmtree(folder)
