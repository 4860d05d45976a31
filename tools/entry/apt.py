"""apt on one suite, as any user: its configuration, lists and cache are its own, signatures are verified."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from . import lock
from .report import EntryError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Package:
    """One .deb: size in bytes, sha256 in hex."""

    name: str
    version: str
    size: int
    sha256: str
    filename: str


class Apt:
    """apt-get and apt-cache with all their files below `home`."""

    def __init__(self, home: Path, arch: str, mirror: str, suite: str) -> None:
        self._home = home
        self._source = f"{mirror} {suite}"
        for folder in ("lists/partial", "archives/partial"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        (home / "status").write_text("")
        (home / "sources.list").write_text(f"deb [arch={arch} signed-by={KEYRING}] {mirror} {suite} main\n")
        (home / "apt.conf").write_text(_configuration(home, arch))
        self._environment = {**os.environ, "APT_CONFIG": str(home / "apt.conf"), "LC_ALL": "C.UTF-8"}

    def update(self) -> None:
        """Fetch the suite's index. Errors: it cannot be had, or its signature is not one of the keyring's."""
        self._run("apt-get", "update", "-q", "--error-on=any")

    def closure(self, names: Iterable[str]) -> set[str]:
        """The names of these packages and all that they depend on."""
        solution = self._run("apt-get", "install", "-y", "--print-uris", "--no-install-recommends", *names)
        return {found.partition("_")[0] for found in re.findall(r"^'[^']*' (\S+\.deb) ", solution, re.M)}

    def current(self, names: Iterable[str]) -> list[Package]:
        """The packages of these names in the suite's present versions."""
        return parse_index(self._run("apt-cache", "show", "--no-all-versions", *names))

    def download(self, packages: Iterable[Package], folder: Path, tick: Callable[[], None]) -> None:
        """Fetch the .deb files into `folder`, calling `tick` every two seconds."""
        names = [f"{package.name}={package.version}" for package in packages]
        log_path = self._home / "download.log"
        with open(log_path, "w") as log:
            process = subprocess.Popen(
                ["apt-get", "download", "-q", *names],
                cwd=folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=lock.held(),
            )
        while True:
            try:
                process.wait(timeout=2)
                break
            except subprocess.TimeoutExpired:
                tick()
        if process.returncode:
            raise EntryError(f"downloading from {self._source} failed:\n{log_path.read_text().strip()}")

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=lock.held(),
        )
        if done.returncode:
            called = " ".join(command[:2])
            raise EntryError(f"`{called}` failed on {self._source}:\n{done.stdout.strip()}")
        return done.stdout


def _configuration(home: Path, arch: str) -> str:
    """apt's configuration: how the machine reaches its mirror is taken over, hooks and folders are not."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    acquire = [line for line in dump.splitlines() if line.startswith("Acquire")]
    own = {
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        # The folders may be closed to apt's own user.
        "APT::Sandbox::User": "root",
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::AllowInsecureRepositories": "false",
        "Acquire::AllowWeakRepositories": "false",
        "Acquire::Languages": "none",
        "Dir::State": home,
        "Dir::State::lists": home / "lists",
        "Dir::State::status": home / "status",
        "Dir::Cache": home,
        "Dir::Cache::archives": home / "archives",
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Etc::sourcelist": home / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
    }
    return "".join(f"{line}\n" for line in [*acquire, *(f'{key} "{value}";' for key, value in own.items())])


def parse_index(text: str) -> list[Package]:
    """The packages that `apt-cache show` prints."""
    packages = []
    for stanza in re.split(r"\n\s*\n", text.strip()):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): *(.*)$", stanza, re.M))
        if "SHA256" not in fields:
            continue
        name, version = fields["Package"], fields["Version"]
        filename = f"{name}_{version.replace(':', '%3a')}_{fields['Architecture']}.deb"
        packages.append(Package(name, version, int(fields["Size"]), fields["SHA256"], filename))
    return packages
