"""Print which contracts engines keep: `tools/bazel run //tools/report:engines -- [NAME=]RESULTS ...`.

Each RESULTS is one run, of one engine at one version, and becomes a column: a --build_event_json_file of `bazel test`,
a JUnit XML file, a folder with such, or what --save wrote. Several with one NAME are one run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

import hyper_parallel_tests
from hyper_parallel_tests.contract_check.tree import Tree
from tools.report import engines_pages
from tools.report.choice import DOMAINS, LAYER_LIST, OUT, check_domains, here, put
from tools.report.engines_table import MixedRun, Run, rows
from tools.report.results import Case, load, read_events, read_folder, read_xml, save

_FORMAT = flags.DEFINE_enum("format", "text", ["text", "markdown"], "how the table is written")
_SAVE = flags.DEFINE_string(
    "save", "", "keep the run in this file, for later tables: the next `bazel test` replaces what build events point to"
)


class NoResults(ValueError):
    """There is nothing to read where results should be."""


def main(argv: list[str]) -> int:
    """Print or write the table of the runs that `argv` names."""
    if not argv[1:]:
        raise app.UsageError("name at least one run: build events, a JUnit XML file, or a folder with such")
    try:
        found = runs(argv[1:], here())
    except (MixedRun, NoResults) as error:
        raise app.UsageError(str(error)) from None
    if _SAVE.value:
        if len(found) > 1:
            raise app.UsageError(f"--save keeps one run, and these are {len(found)}: save each by itself")
        save(found[0].cases, here() / _SAVE.value)
    tree = Tree(Path(hyper_parallel_tests.__path__[0]))
    check_domains(tree, DOMAINS.value)
    table = rows(tree, found, DOMAINS.value, LAYER_LIST.value)
    page = {"text": engines_pages.text, "markdown": engines_pages.markdown}[_FORMAT.value](found, table)
    put(page, OUT.value, f"{len(table)} contracts, {len(found)} runs")
    return 0


def runs(words: Sequence[str], folder: Path) -> list[Run]:
    """The runs that words such as `nightly=events.json` name, in their order.

    Args:
        words: `[NAME=]PATH`.
        folder: what paths are relative to.

    Raises:
        NoResults: a path is not there, or holds no case that judges a contract.
        MixedRun: one run has results of several engines.
    """
    named: dict[str, list[tuple[str, Path]]] = {}
    for number, word in enumerate(words):
        name, _, path = word.rpartition("=") if not (folder / word).exists() else ("", "", word)
        named.setdefault(name or f" {number}", []).append((name, folder / path))
    found = []
    for places in named.values():
        where = ", ".join(str(path) for _, path in places)
        run = Run.of((case for _, path in places for case in _cases(path)), places[0][0], where)
        if not run.cases:
            raise NoResults(f"{where}: no case that judges a contract in it, expected the results of a run of the net")
        found.append(run)
    return found


def _cases(path: Path) -> list[Case]:
    if not path.exists():
        raise NoResults(f"{path}: no such file or folder")
    if path.is_dir():
        return list(read_folder(path))
    if kept := load(path):
        return kept
    if path.suffix == ".xml":
        return read_xml(path)
    workspace = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", Path(__file__).parents[2]))
    with path.open(encoding="utf-8") as events:
        try:
            targets = read_events(events, workspace)
        except ValueError:
            raise NoResults(f"{path}: expected what bazel test --build_event_json_file writes, or a .xml") from None
    return [case for target in targets.values() for case in target.cases]


if __name__ == "__main__":
    app.run(main)
