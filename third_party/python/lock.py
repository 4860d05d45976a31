"""Refreshes requirements_<group>.lock from requirements_<group>.in: each package pinned, one wheel's hash.

    tools/bazel run //third_party/python:lock -- cpu            # or several groups; none means all of them

Only metadata is downloaded, so the cuda group costs megabytes and not gigabytes. Indexes come from pip's own
configuration on this machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

GROUPS = ("cpu", "cuda", "npu", "tools")
PLATFORM = "x86_64-manylinux_2_28"
PYTHON = "3.11"
_INDEX_SETTINGS = ("index-url", "extra-index-url", "find-links")


class LockError(Exception):
    """A group could not be locked; the text says which and why."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="lock", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"any of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--uv", default="uv", help="the uv binary that resolves (default: uv on PATH)")
    parser.add_argument("--pip-python", default=sys.executable, help="the Python whose pip knows the indexes")
    options = parser.parse_args(argv)
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {', '.join(sorted(unknown))}: expected {', '.join(GROUPS)}")
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    folder = Path(workspace, "third_party/python") if workspace else Path(__file__).resolve().parent
    sources = index_options(options.pip_python)
    try:
        for group in options.groups or GROUPS:
            target = folder / f"requirements_{group}.lock"
            packages = resolve(options.uv, folder / f"requirements_{group}.in", sources)
            target.write_text(render(group, packages), encoding="utf-8")
            print(f"{target.name}: {len(packages)} packages")
    except LockError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    return 0


def index_options(python: str) -> list[str]:
    """The machine's package indexes, as uv's flags; empty where pip runs on its defaults."""
    flags: list[str] = []
    for setting in _INDEX_SETTINGS:
        value = os.environ.get(f"PIP_{setting.upper().replace('-', '_')}") or _pip_setting(python, setting)
        for word in value.split():
            flags += [f"--{setting}", word]
    return flags


def _pip_setting(python: str, setting: str) -> str:
    command = [python, "-m", "pip", "config", "get", f"global.{setting}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def resolve(uv: str, requirements: Path, sources: list[str]) -> list[dict]:
    """Resolves one group for the tests' platform.

    Returns:
        The packages of a pylock.toml (PEP 751), each with the wheels that fit the platform.

    Raises:
        LockError: uv found no solution, or a package has no wheel.
    """
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "pylock.toml")
        command = [
            uv,
            "pip",
            "compile",
            str(requirements),
            "--quiet",
            "--no-config",
            "--no-cache",
            "--format=pylock.toml",
        ]
        command += ["--only-binary=:all:", f"--python-version={PYTHON}", f"--python-platform={PLATFORM}"]
        # One index may carry torch's CPU build, another the CUDA build: the pin chooses, not their order.
        command += ["--index-strategy=unsafe-best-match", f"--output-file={output}", *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            target = f"Python {PYTHON} on {PLATFORM}"
            raise LockError(f"{requirements.name} has no solution for {target}:\n{done.stderr.strip()}")
        packages = tomllib.loads(output.read_text(encoding="utf-8"))["packages"]
    without = [package["name"] for package in packages if not package.get("wheels")]
    if without:
        raise LockError(f"{requirements.name}: no wheel for {PLATFORM} of {', '.join(without)}")
    return packages


def best_wheel(package: dict) -> dict:
    """The wheel that pip would take: built for this Python before the stable ABI before pure Python."""
    exact = f"cp{PYTHON.replace('.', '')}"
    preference = (f"-{exact}-{exact}-", "-abi3-", "")

    def rank(wheel: dict) -> tuple[int, str]:
        name = wheel["url"].rpartition("/")[2]
        return next(place for place, part in enumerate(preference) if part in name), name

    return min(package["wheels"], key=rank)


def render(group: str, packages: list[dict]) -> str:
    """The lock as pip reads it."""
    lines = [
        f"# Python {PYTHON}, {PLATFORM}. Made from requirements_{group}.in; refresh it with",
        f"#     tools/bazel run //third_party/python:lock -- {group}",
    ]
    for package in sorted(packages, key=lambda package: package["name"]):
        digest = best_wheel(package)["hashes"]["sha256"]
        lines += [f"{package['name']}=={package['version']} \\", f"    --hash=sha256:{digest}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
