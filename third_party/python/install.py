"""Installs one lock into one directory through pip, with deterministic bytecode.

The environment's repository rule runs this with the Python that the tests will use. Every package must match
the lock's hash, so it does not matter where pip gets it from (an index, a mirror, a folder: pip's own
configuration). What goes wrong is told in one sentence, with the package and the file to edit.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

_PIP_INSTALL = "install --require-hashes --no-deps --no-compile --only-binary=:all: --progress-bar=off"
_OVERRULED = {
    "PIP_TARGET": "",
    "PIP_PREFIX": "",
    "PIP_ROOT": "",
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
}


class InstallError(Exception):
    """The environment could not be built; the text names the package, the cause and what to do."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="install", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lock", type=Path, required=True, help="the hash-locked requirements")
    parser.add_argument("--lock-name", help="how messages call the lock (default: its path)")
    parser.add_argument("--target", type=Path, required=True, help="the directory to fill")
    options = parser.parse_args(argv)
    try:
        install(options.lock, options.lock_name or str(options.lock), options.target)
        compile_bytecode(options.target)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def install(lock: Path, lock_name: str, target: Path) -> None:
    """Fills `target` with the packages of `lock`.

    Raises:
        InstallError: pip is missing, or refused a package.
    """
    environment = {**os.environ, **_OVERRULED, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], env=environment, capture_output=True, check=False).returncode:
        raise InstallError(
            f"{sys.executable} has no pip, which builds the environment of {lock_name}: "
            f"run '{sys.executable} -m ensurepip', or install Debian's python3-pip."
        )
    command = [*pip, *_PIP_INSTALL.split(), f"--target={target}", f"--requirement={lock}"]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise InstallError(explain(done.stdout, lock_name))


def compile_bytecode(target: Path) -> None:
    """Compiles every module so that the result depends on the sources alone: no times, no absolute paths."""
    command = [sys.executable, "-m", "compileall", "-q", "-j0", "--invalidation-mode=unchecked-hash", "."]
    seeded = {**os.environ, "PYTHONHASHSEED": "0"}
    # Packages carry files that this Python cannot compile (templates, tests of syntax errors): not fatal.
    subprocess.run(command, cwd=target, env=seeded, capture_output=True, check=False)


def explain(output: str, lock_name: str) -> str:
    """What pip's output means for somebody who has never seen this repository."""
    for account in (_mismatch, _no_hash, _no_pin, _no_wheel, _disk_full):
        text = account(output, lock_name)
        if text:
            return text
    tail = "\n".join(output.strip().splitlines()[-15:])
    return f"pip could not install {lock_name}. Its last words:\n{tail}"


def _mismatch(output: str, lock_name: str) -> str:
    found = re.search(r"^\s+(\S+==\S+) from .*\n\s*Expected sha256 +(\w+)\n\s*Got +(\w+)", output, re.MULTILINE)
    if not found:
        return ""
    package, expected, got = found.groups()
    return (
        f"{package} is not the file that {lock_name} names: expected sha256 {expected}, found {got}. "
        f"If the package changed on purpose, refresh the lock ({_refresh(lock_name)}) or edit its line in "
        f"{lock_name}; if not, the index, the mirror or pip's cache serves another file ('pip cache purge' "
        "empties the cache)."
    )


def _no_hash(output: str, lock_name: str) -> str:
    found = re.search(r"Hashes are required.*?\n\s+(\S+==\S+) --hash", output, re.DOTALL)
    return f"{found.group(1)} has no --hash in {lock_name}: refresh it ({_refresh(lock_name)})." if found else ""


def _no_pin(output: str, lock_name: str) -> str:
    found = re.search(r"requirements must have their versions pinned.*?\n\s+(\S+)", output)
    return f"{found.group(1)} has no == in {lock_name}: refresh it ({_refresh(lock_name)})." if found else ""


def _no_wheel(output: str, lock_name: str) -> str:
    found = re.search(r"that satisfies the requirement (\S+) .*?\(from versions: ([^)]*)\)", output)
    if not found:
        return ""
    package, versions = found.groups()
    offered = "none" if versions == "none" else ", ".join(versions.split(", ")[-5:])
    advice = (
        "pip could not reach an index: check the network and the proxy, or name a mirror in pip's "
        "configuration ('pip config debug' shows it)."
        if versions == "none" and re.search("Retrying|NewConnectionError", output)
        else "Tell pip where it is (PIP_EXTRA_INDEX_URL, or PIP_FIND_LINKS for a folder), or change "
        f"the version in {Path(lock_name).with_suffix('.in')} and refresh the lock ({_refresh(lock_name)})."
    )
    if "+cpu" in package:
        advice += " CPU builds of torch are on PyTorch's own wheel index (see 'Get started' on pytorch.org)."
    asked = f"No wheel of {package} for Python {sys.version_info[0]}.{sys.version_info[1]} on this platform"
    return f"{asked}, as {lock_name} asks; found: {offered}. {advice}"


def _disk_full(output: str, lock_name: str) -> str:
    if "No space left on device" not in output:
        return ""
    return f"The disk is full: {lock_name} needs about 2 GB for Bazel's output base and pip's temporary folder."


def _refresh(lock_name: str) -> str:
    group = Path(lock_name).stem.removeprefix("requirements_")
    return f"tools/bazel run //third_party/python:lock -- {group}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
