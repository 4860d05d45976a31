"""A small file system of its own, that can be full and can be made read-only, without any privilege.

A child process mounts a tmpfs in namespaces of its own, and others of the same user reach it through the
child's root in /proc. It is gone with the child.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Disk", "small_disk"]

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 16384, 1 << 18
_WHERE = "/tmp"


class Disk:
    """A mounted file system.

    Attributes:
        path: where other processes see it.
    """

    def __init__(self, holder: subprocess.Popen[str]) -> None:
        self._holder = holder
        self.path = Path(f"/proc/{holder.pid}/root{_WHERE}")

    def make_read_only(self) -> None:
        """From now on nobody writes to it, root neither."""
        self._holder.stdin.write("read-only\n")
        self._holder.stdin.flush()
        answer = self._holder.stdout.readline().strip()
        if answer != "read-only":
            raise AssertionError(f"the file system was not made read-only: {answer}")


@contextmanager
def small_disk(size: int) -> Iterator[Disk]:
    """Context with an empty file system of so many bytes.

    Where the machine lets nobody mount one, the case fails and says so: it is never taken for passed.
    """
    command = [sys.executable, "-I", __file__, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        answer = holder.stdout.readline().strip()
        if answer != "mounted":
            holder.stdin.close()
            raise AssertionError(
                f"NO SMALL DISK: this machine lets this user mount no file system of their own ({answer}); allow user "
                "namespaces (sysctl kernel.unprivileged_userns_clone, or the container's security profile)"
            )
        try:
            yield Disk(holder)
        finally:
            holder.stdin.close()


def _hold(size: int) -> None:
    """Makes it, says so, and holds it until standard input ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *args: object) -> None:
        if getattr(libc, name)(*args):
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    def mount(target: str, flags: int, source: bytes | None = None, options: bytes | None = None) -> None:
        call("mount", source, target.encode(), source, ctypes.c_ulong(flags), options)

    user, group = os.getuid(), os.getgid()
    call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    mount("/", _MS_REC | _MS_PRIVATE)
    mount(_WHERE, 0, b"tmpfs", f"size={size}".encode())
    print("mounted", flush=True)
    for _ in sys.stdin:
        mount(_WHERE, _MS_REMOUNT | _MS_RDONLY, b"tmpfs", f"size={size}".encode())
        print("read-only", flush=True)


if __name__ == "__main__":
    try:
        _hold(int(sys.argv[1]))
    except OSError as error:
        print(str(error), flush=True)
