"""Objects in a dict whose keys are numbers are loaded under the numbers as texts, beside the old ones."""

import tempfile

import torch.distributed.checkpoint as dcp

if __name__ == "__main__":
    state = {"state": {0: {"step": 0}}}
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"state": {0: {"step": 3}}}, checkpoint_id=folder, no_dist=True)
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    print("expected {'state': {0: {'step': 3}}}, got", state)
