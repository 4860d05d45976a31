"""HuggingFaceStorageWriter puts no integers or booleans together, and complex numbers into files that nobody reads."""

import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open

if __name__ == "__main__":
    for value in (torch.arange(3), torch.tensor([True]), torch.ones(2, dtype=torch.complex64)):
        folder = tempfile.mkdtemp()
        writer = dcp.HuggingFaceStorageWriter(folder, save_distributed=True, enable_consolidation=True)
        try:
            dcp.save({"one": value}, storage_writer=writer)
            with safe_open(f"{folder}/model-00001-of-00001.safetensors", "pt") as file:
                print(value.dtype, "got", file.get_tensor("one"))
        except BaseException as error:
            print(value.dtype, "expected", value, "in a file, got", str(error).strip().splitlines()[-1])
        shutil.rmtree(folder)
