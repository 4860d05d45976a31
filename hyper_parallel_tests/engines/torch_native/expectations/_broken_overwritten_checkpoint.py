"""A save over another checkpoint that ends in the middle leaves new numbers under the old metadata, which load."""

import os
import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp


class Interrupted(dcp.FileSystemWriter):
    def finish(self, metadata, results):
        os._exit(0)


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    dcp.save({"weight": torch.full((3,), 1.0)}, checkpoint_id=folder)
    if (child := os.fork()) == 0:
        dcp.save({"weight": torch.full((3,), 2.0)}, storage_writer=Interrupted(folder))
    os.waitpid(child, 0)
    state = {"weight": torch.zeros(3)}
    dcp.load(state, checkpoint_id=folder)
    print("expected an error, or what was saved whole, 1; got", state["weight"])
    shutil.rmtree(folder)
