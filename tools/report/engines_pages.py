"""The table of engines on paper: markdown, or plain text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tools.report.engines_table import NOT_OFFERED, WORDS, Cell, Row, Run
from tools.report.results import Case

__all__ = ["markdown", "text"]

_PACKAGE = "hyper_parallel_tests"


def markdown(runs: Sequence[Run], table: Sequence[Row]) -> str:
    """The table with each contract's sentence, counts, then run by run what is broken and what is not offered."""
    names = [run.name for run in runs]
    lines = [
        f"| contract | promise | {' | '.join(names)} |",
        f"|---|---|{'---|' * len(names)}",
        *(f"| {' | '.join(_line(row))} |" for row in table),
        "",
        *(f"{name}: {counts}  " for name, counts in zip(names, _counts(runs, table), strict=True)),
    ]
    for title, entries in _sections(runs, table):
        lines += ["", f"## {title}", ""]
        for head, details in entries:
            lines += [f"- {head}", *(f"  - {detail}" for detail in details)]
    return "\n".join(lines).rstrip() + "\n"


def text(runs: Sequence[Run], table: Sequence[Row]) -> str:
    """The same in aligned columns, without the sentences and with plain lists."""
    cells = [["contract", *(run.name for run in runs)]]
    cells += [[row.contract.id, *(cell.text for cell in row.cells)] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    lines += ["", *(f"{run.name}: {counts}" for run, counts in zip(runs, _counts(runs, table), strict=True))]
    for title, entries in _sections(runs, table):
        lines += ["", title]
        for head, details in entries:
            lines += [f"  {head.replace('`', '')}", *(f"      {detail.replace('`', '')}" for detail in details)]
    return "\n".join(lines).rstrip() + "\n"


def _counts(runs: Sequence[Run], table: Sequence[Row]) -> Iterator[str]:
    for number in range(len(runs)):
        counts = Counter(row.cells[number].word for row in table)
        yield f"of {len(table)} contracts, {', '.join(f'{counts[word]} {word}' for word in WORDS if counts[word])}"


def _sections(runs: Sequence[Run], table: Sequence[Row]) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """(title, [(head, details)]) of what a reader of the table wants to know next."""
    for number, run in enumerate(runs):
        column = [(row.contract.id, row.cells[number]) for row in table]
        if broken := [(contract, cell) for contract, cell in column if cell.broken]:
            yield f"Broken on {run.name}", [(contract, _defects(cell)) for contract, cell in broken]
        if declined := _declined(column):
            yield f"Not offered on {run.name}", declined
        if holes := [contract for contract, cell in column if not cell.cases]:
            yield f"Not run on {run.name}", [(", ".join(holes), [])]


def _defects(cell: Cell) -> list[str]:
    """A line a defect: what is wrong, how to see it, and the cases that do."""
    by_defect: dict[tuple[str, str], list[str]] = {}
    for case in cell.broken:
        new = "newly broken: " if case.newly_broken else ""
        by_defect.setdefault((new + case.headline, _reproduction(case)), []).append(_short(case.nodeid))
    return [
        f"{sentence.rstrip('.')}. `{how}` ({', '.join(f'`{case}`' for case in cases)})"
        for (sentence, how), cases in by_defect.items()
    ]


def _reproduction(case: Case) -> str:
    """The script for a defect that is known, else the command that runs the case."""
    if case.reproduction:
        return f"{_PACKAGE}/engines/{case.engine}/{case.reproduction}"
    return (
        f"python -m {_PACKAGE}.harness.launch --engine {case.engine or 'torch_native'} "
        f"--cards {case.cards}{' --jobs' if case.jobs else ''} '{case.nodeid}'"
    )


def _declined(column: Sequence[tuple[str, Cell]]) -> list[tuple[str, list[str]]]:
    """(reason, [contracts]), the most frequent first; a contract of which a part is offered says so."""
    by_reason: dict[str, dict[str, None]] = {}
    for contract, cell in column:
        shown = contract if cell.word == NOT_OFFERED else f"{contract} (in part)"
        for case in cell.not_offered:
            by_reason.setdefault(case.headline, {})[shown] = None
    found = sorted(by_reason.items(), key=lambda one: -len(one[1]))
    return [(reason, [", ".join(contracts)]) for reason, contracts in found]


def _short(nodeid: str) -> str:
    return nodeid.removeprefix(f"{_PACKAGE}/domains/")


def _line(row: Row) -> list[str]:
    """The row's fields in markdown, in which a bar would part them."""
    fields = [row.contract.id, row.contract.statement, *(cell.text for cell in row.cells)]
    return [field.replace("|", "\\|").replace("\n", " ") for field in fields]
