"""An engine's history, and git's own bisection of it, in a work tree of our own.

The work tree borrows the objects of the engine's repository and has nothing else of it: neither refs, nor hooks, nor
settings. Nothing is ever written there.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Commit", "GitError", "History", "Progress"]


class GitError(ValueError):
    """What was asked of an engine's history cannot be; the text says what to change."""


@dataclass(frozen=True)
class Commit:
    """A revision: its full id, the author and the author's date (ISO 8601), and the first line of its message."""

    id: str
    author: str
    date: str
    subject: str

    def __str__(self) -> str:
        return f"{self.id[:10]} {self.date[:10]} {self.subject}"


@dataclass(frozen=True)
class Progress:
    """Where a bisection stands.

    Attributes:
        first: the answer, the first revision that is like the newer end, None as long as there is none.
        suspects: one of these is the answer, and none of them can be told; empty as long as there is hope.
        left: revisions that are left to be tested after the present one.
        steps: about how many of them will be.
    """

    first: Commit | None = None
    suspects: tuple[Commit, ...] = ()
    left: int = 0
    steps: int = 0

    @property
    def over(self) -> bool:
        return self.first is not None or bool(self.suspects)


class History:
    """The revisions of one repository.

    Args:
        repository: a work tree's top folder or a git directory.
        tree: an empty folder, for the work tree of our own.

    Raises:
        GitError: `repository` is no git repository.
    """

    def __init__(self, repository: Path, tree: Path) -> None:
        self.tree = tree
        self._repository = repository
        if not repository.is_dir():
            raise GitError(f"{repository}: no such folder, expected a git checkout of the engine")
        objects = self._theirs("rev-parse", "--git-path", "objects")
        if not objects or self._theirs("rev-parse", "--show-prefix"):
            raise GitError(f"{repository}: not the top folder of a git checkout, so there is no history to search")
        _git(tree, "init", "--quiet", ".")
        info = tree / ".git" / "objects" / "info" / "alternates"
        info.write_text(f"{(repository / objects).resolve()}\n")
        shallow = repository / (self._theirs("rev-parse", "--git-path", "shallow") or "shallow")
        if shallow.is_file():
            (tree / ".git" / "shallow").write_bytes(shallow.read_bytes())

    def commit(self, revision: str) -> Commit:
        """The commit that a revision means in the repository.

        Raises:
            GitError: there is none.
        """
        found = self._theirs("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if not found:
            raise GitError(f"{self._repository}: there is no revision {revision!r} (fetch it first?)")
        return self._show(found)

    def is_ancestor(self, older: Commit, newer: Commit) -> bool:
        """Whether one revision leads to another one."""
        return _git(self.tree, "merge-base", "--is-ancestor", older.id, newer.id, check=False) is not None

    def check_order(self, good: Commit, bad: Commit) -> None:
        """See to it that there is a way from one revision to the other.

        Raises:
            GitError: neither is an ancestor of the other one, or they are the same.
        """
        if good == bad:
            raise GitError(f"good and bad are the same revision, {good}")
        if not (self.is_ancestor(good, bad) or self.is_ancestor(bad, good)):
            base = _git(self.tree, "merge-base", good.id, bad.id, check=False)
            hint = f": they part at {self._show(base.strip())}, try that as the good one" if base else ""
            raise GitError(f"the good revision {good} is not an ancestor of the bad one, {bad}{hint}")

    def check_out(self, commit: Commit) -> None:
        """Put a revision into the work tree."""
        _git(self.tree, "checkout", "--quiet", "--force", "--detach", commit.id)

    def start(self, older: Commit, newer: Commit, *, first_parent: bool) -> Progress:
        """Begin; a revision to be tested is in the work tree unless the answer is known at once.

        Args:
            older, newer: the ends.
            first_parent: whether only the main line counts, so that the answer may be a merge.
        """
        self.check_out(newer)
        options = ["--first-parent"] if first_parent else []
        return self._progress(_git(self.tree, "bisect", "start", *options, newer.id, older.id))

    def mark(self, like: str) -> Progress:
        """Tell that the present revision is like the `older` end, the `newer` one, or to be left out (`neither`).

        The next one is checked out.
        """
        word = {"older": "good", "newer": "bad", "neither": "skip"}[like]
        return self._progress(_git(self.tree, "bisect", word, check=False) or "")

    def head(self) -> Commit:
        """The revision in the work tree."""
        return self._show("HEAD")

    def _progress(self, said: str) -> Progress:
        log = _git(self.tree, "bisect", "log")
        if found := re.search(r"^# first bad commit: \[(\w+)\]", log, re.MULTILINE):
            return Progress(first=self._show(found[1]))
        if "# only skipped commits left" in log:
            suspects = re.findall(r"^# possible first bad commit: \[(\w+)\]", log, re.MULTILINE)
            return Progress(suspects=tuple(map(self._show, suspects)))
        left = re.search(r"(\d+) revisions? left to test after this \(roughly (\d+) step", said)
        return Progress(left=int(left[1]), steps=int(left[2])) if left else Progress()

    def _show(self, revision: str) -> Commit:
        shown = _git(self.tree, "show", "--no-patch", "--format=%H%n%an%n%aI%n%s", revision)
        return Commit(*shown.rstrip("\n").split("\n", 3))

    def _theirs(self, *words: str) -> str:
        """What git says of the repository, empty where it says nothing; only asked, never changed."""
        settings = [f"safe.directory={self._repository.resolve()}", "core.fsmonitor=false"]
        found = _git(self._repository, "--no-optional-locks", *words, settings=settings, check=False)
        return (found or "").strip()


def _git(
    folder: Path, *words: str, settings: tuple[str, ...] | list[str] = ("core.hooksPath=/dev/null",), check: bool = True
) -> str | None:
    """git's output; None where it refuses and `check` is off."""
    given = [word for setting in settings for word in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", *given, *words],
            cwd=folder,
            env=_environment(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise GitError("there is no git on PATH, and a history cannot be searched without it") from None
    if done.returncode and check:
        raise GitError(f"git {' '.join(words)} failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return None if done.returncode else done.stdout


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours without variables that would send git elsewhere, such as GIT_DIR; messages as git writes them in English."""
    return {name: value for name, value in environ.items() if not name.startswith("GIT_")} | {"LC_ALL": "C.UTF-8"}
