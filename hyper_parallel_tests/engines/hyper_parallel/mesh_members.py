"""What the port asks of a mesh and an older version of the library calls otherwise, or lacks."""

from __future__ import annotations

from typing import Any, NoReturn

from hyper_parallel_tests.engines.hyper_parallel.library import refuse
from hyper_parallel_tests.engines.port import members
from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers

_OTHERWISE = {"mesh_dim_names": "alias_name"}

_completions: dict[type, type] = {}


def completed(mesh: Any) -> Any:
    """The same mesh object, whose class now has all members; a member that the library lacks refuses on use."""
    cls = type(mesh)
    if cls not in _completions:
        missing = {name: _stand_in(cls, name) for name in members(DeviceMeshMembers) if not hasattr(cls, name)}
        _completions[cls] = type(cls.__name__, (_Completed, cls), missing) if missing else cls
        _completions[_completions[cls]] = _completions[cls]
    mesh.__class__ = _completions[cls]
    return mesh


class _Completed:
    """A mesh whose parts are completed too."""

    def __getitem__(self, names: str | tuple[str, ...]) -> Any:
        return completed(super().__getitem__(names))


def _stand_in(cls: type, name: str) -> property:
    if hasattr(cls, _OTHERWISE.get(name, "")):
        return property(lambda mesh: getattr(mesh, _OTHERWISE[name]))

    def missing(mesh: Any) -> NoReturn:
        refuse(f"DeviceMesh.{name}", "meshes of this version of the library do not have it")

    return property(missing)
