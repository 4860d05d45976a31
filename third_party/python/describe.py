"""Describes the Python that runs it, and the accelerator's stack: the fingerprint that every test depends on.

Prints one JSON object: `interpreter` (the real one behind shims and virtual environments), `import_paths`,
`executable_paths` and `variables` (what a test must add to a bare environment), `fingerprint` (what decides
whether a cached result still holds), `digest` (of it) and `watch` (files whose change makes it stale).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import sysconfig
from pathlib import Path

_CANN_HOMES = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")
_CANN_VERSIONS = (
    "version.cfg",
    "runtime/version.info",
    "compiler/version.info",
    "opp/version.info",
    "hccl/version.info",
)
_ASCEND_VERSIONS = ("/usr/local/Ascend/driver/version.info", "/usr/local/Ascend/firmware/version.info")
_CUDA_VERSIONS = ("/proc/driver/nvidia/version", "/usr/local/cuda/version.json")
_CUDA_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="describe", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda", "npu"])
    parser.add_argument(
        "--lock", type=Path, help="the lock that fills the environment (default: describe what is installed)"
    )
    options = parser.parse_args(argv)
    described = describe(options.device, options.lock)
    described["digest"] = hashlib.sha256(json.dumps(described["fingerprint"], sort_keys=True).encode()).hexdigest()
    json.dump(described, sys.stdout, indent=1)
    return 0


def describe(device: str, lock: Path | None) -> dict:
    """The whole description, without its digest; see the module's docstring."""
    interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    binaries = [Path(interpreter), *_shared_library()]
    accelerator = {"cpu": _cpu, "cuda": _cuda, "npu": _npu}[device]()
    fingerprint = {
        "device": device,
        "python": {"version": platform.python_version(), "sha256": [_sha256(binary) for binary in binaries]},
        "accelerator": accelerator["fingerprint"],
    }
    watch = [str(path) for path in binaries] + accelerator["watch"]
    import_paths = accelerator.get("import_paths", [])
    if lock:
        fingerprint["lock"] = _sha256(lock)
    else:
        records = _records()
        fingerprint["packages"] = {name: digest for name, (digest, _) in records.items()}
        watch += [str(path) for _, path in records.values()]
        import_paths = _site_directories() + import_paths
    return {
        "interpreter": interpreter,
        "import_paths": import_paths,
        "executable_paths": accelerator.get("executable_paths", []),
        "variables": accelerator.get("variables", {}),
        "fingerprint": fingerprint,
        "watch": watch,
    }


def _shared_library() -> list[Path]:
    """libpython, where the interpreter is only a thin front of it."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return []
    library = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
    return [library] if library.is_file() else []


def _site_directories() -> list[str]:
    return [entry for entry in sys.path if Path(entry).name in {"site-packages", "dist-packages"}]


def _records() -> dict[str, tuple[str, Path]]:
    """Name and version of each installed package, with the digest and the path of its list of files."""
    records = {}
    for distribution in importlib.metadata.distributions(path=_site_directories()):
        files = [name for name in distribution.files or () if name.name == "RECORD"]
        record = Path(distribution.locate_file(files[0])) if files else None
        if record and record.is_file():
            records[f"{distribution.metadata['Name']}=={distribution.version}"] = (_sha256(record), record)
    return dict(sorted(records.items()))


def _cpu() -> dict:
    return {"fingerprint": {}, "watch": []}


def _cuda() -> dict:
    files = _texts(_CUDA_VERSIONS)
    libraries = [path for path in _CUDA_LIBRARIES if Path(path).exists()]
    # The library's own name ends in the driver's version.
    files |= {path: Path(path).resolve().name for path in libraries}
    home = os.environ.get("CUDA_HOME", "")
    watch = libraries + [path for path in files if not path.startswith("/proc")]
    return {
        "fingerprint": files or "no CUDA driver found",
        "watch": watch,
        **_below([home] if home else [], "CUDA"),
    }


def _npu() -> dict:
    variables = [os.environ.get(name, "") for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    homes = [home for home in (*variables, *_CANN_HOMES) if home and Path(home).is_dir()][:1]
    infos = [f"{platform.machine()}-linux/ascend_toolkit_install.info", *_CANN_VERSIONS]
    files = _texts([*_ASCEND_VERSIONS, *(str(Path(home, info)) for home in homes for info in infos)])
    return {
        "fingerprint": files or "no CANN or NPU driver found",
        "watch": list(files),
        **_below([*homes, "/usr/local/Ascend"], "ASCEND"),
    }


def _texts(paths: list[str] | tuple[str, ...]) -> dict[str, str]:
    return {path: Path(path).read_text(errors="replace").strip() for path in paths if Path(path).is_file()}


def _below(roots: list[str], prefix: str) -> dict:
    """What the vendor's set-up script exported: its own variables, its own entries of the search paths."""

    def entries(name: str) -> list[str]:
        return (
            [entry for entry in os.environ.get(name, "").split(":") if entry.startswith(tuple(roots))] if roots else []
        )

    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefix)}
    libraries = entries("LD_LIBRARY_PATH")
    if libraries:
        variables["LD_LIBRARY_PATH"] = ":".join(libraries)
    return {
        "import_paths": entries("PYTHONPATH"),
        "executable_paths": entries("PATH"),
        "variables": variables,
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
