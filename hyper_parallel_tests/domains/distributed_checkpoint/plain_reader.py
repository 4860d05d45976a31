"""Reads a folder of safetensors as a program without torch does: `python plain_reader.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from safetensors import deserialize


def read(folder: Path) -> dict[str, object]:
    """Tensors as (dtype, shape, bytes in hexadecimal), the file of each, the index, and what else is there."""
    tensors, file_of = {}, {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, one in deserialize(file.read_bytes()):
            if name in tensors:
                raise ValueError(f"{name} is in {file_of[name]} and in {file.name}")
            tensors[name], file_of[name] = (one["dtype"], one["shape"], bytes(one["data"]).hex()), file.name
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    others = sorted(one.name for one in folder.iterdir() if one.suffix not in {".safetensors", ".json"})
    return {"tensors": tensors, "file": file_of, "index": index, "others": others, "torch": "torch" in sys.modules}


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1]))))
