"""Checkpoints in other formats: none in the library."""

from __future__ import annotations

from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "dcp_to_safetensors",
    "dcp_to_torch_save",
    "export_safetensors",
    "import_safetensors",
    "safetensors_to_dcp",
    "torch_save_to_dcp",
]

_NO_EXPORT = Unsupported(
    "its safetensors are parts of its own checkpoints: nothing writes or reads whole tensors in them"
)
_NO_CONVERSION = Unsupported("the library turns its checkpoints into no other format")

dcp_to_safetensors = _NO_CONVERSION
dcp_to_torch_save = _NO_CONVERSION
export_safetensors = _NO_EXPORT
import_safetensors = _NO_EXPORT
safetensors_to_dcp = _NO_CONVERSION
torch_save_to_dcp = _NO_CONVERSION
