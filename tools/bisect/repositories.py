"""Made-up repositories for the tests: real git, one file a revision."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Repository:
    """A repository whose file `state` says in each revision what the cases do: `name=verdict` words."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", ".")

    def git(self, *words: str) -> str:
        """git's output, as somebody who has no settings."""
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *who, *words],
            cwd=self.path,
            env={"PATH": "/usr/bin:/bin", "GIT_AUTHOR_DATE": "2026-02-01T12:00:00+01:00", "HOME": str(self.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, state: str, subject: str = "") -> str:
        """Record a revision; returns its id."""
        (self.path / "state").write_text(state)
        self.git("add", "state")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject or state)
        return self.git("rev-parse", "HEAD")

    def merge(self, branch: str, state: str) -> str:
        """Merge a branch with this outcome; returns the merge's id."""
        self.git("merge", "--quiet", "--no-commit", "--no-ff", "--strategy=ours", branch)
        return self.commit(state, f"merge {branch}")

    def files(self) -> dict[str, bytes]:
        """All that the repository consists of, to see that nothing is changed."""
        paths = [path for path in sorted(self.path.rglob("*")) if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}
