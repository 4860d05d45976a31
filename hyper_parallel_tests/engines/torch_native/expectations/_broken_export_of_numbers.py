"""HuggingFaceStorageWriter writes a tensor without dimensions as zero when it puts the ranks' parts together."""

import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open

if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    writer = dcp.HuggingFaceStorageWriter(folder, save_distributed=True, enable_consolidation=True)
    dcp.save({"one": torch.tensor(3.5)}, storage_writer=writer)
    with safe_open(f"{folder}/model-00001-of-00001.safetensors", "pt") as file:
        print("expected 3.5, got", file.get_tensor("one"))
    shutil.rmtree(folder)
