"""The bench's figures: what is read from a record, medians, promises, and how they are put on paper."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from tools.bench import figures, launches, plot, results
from tools.bench.figures import Key, Sample, Spread
from tools.bench.launches import Case

_SAMPLE = Sample("net", 8, 0, 1, first_case_s=2.0, whole_run_s=2.5, cpu_s=4.0, further_case_ms=None)


def _samples(net_start_s: float, further_case_ms: float, repetitions: int = 5) -> list[Sample]:
    """A whole benchmark on 8 ranks in which torchrun takes 10 s."""
    found = []
    for repetition in range(repetitions):
        one = replace(_SAMPLE, repetition=repetition)
        found += [
            replace(one, first_case_s=net_start_s),
            replace(one, contender="torchrun", first_case_s=10.0, further_case_ms=12000.0),
            replace(one, cases=101, first_case_s=99.0, further_case_ms=further_case_ms),
        ]
    return found


def _broken(samples: list[Sample]) -> list[str]:
    bars = figures.bars(figures.summarise(samples), "net", "torchrun")
    return [bar.text for bar in bars if not bar.kept]


def test_a_case_counts_once_all_ranks_have_ended_it(tmp_path: Path) -> None:
    """The end is the last rank's, the own time the shortest: a late rank is charged to the launcher."""
    record = tmp_path / "record"
    record.write_text("0 1 1000000000 4000000000\n0 0 3000000000 3500000000\n1 0 5000000000 6000000000\n")
    assert launches.read_record(record, ranks=2) == {0: Case(ended=4.0, own=0.5)}
    assert launches.read_record(tmp_path / "none", ranks=2) == {}


def test_a_further_case_costs_what_is_not_its_own_time() -> None:
    """Cases that end 30 ms and 50 ms apart and take 10 ms in a bare loop cost 20 ms and 40 ms: 30 in the mean.

    What a rank spends inside a case is not taken for its own time: it waits there for ranks that were told late.
    """
    cases = {0: Case(1.0, 0.9), 1: Case(1.03, 0.02), 2: Case(1.08, 0.04)}
    assert round(figures.further_case_ms(cases, own_ms=10.0), 6) == 30.0
    assert figures.start_costs(0.25, 1.5, cases) == (0.75, 1.25)


def test_a_summary_holds_median_and_range() -> None:
    """One slow run moves the range and not the median."""
    samples = [replace(_SAMPLE, first_case_s=value) for value in (2.0, 9.0, 1.0)]
    assert figures.summarise(samples)[Key("first_case_s", 8, "net")] == Spread(2.0, 1.0, 9.0, 3)


def test_launches_of_many_cases_do_not_count_as_starts() -> None:
    """Their first case comes after the collection of all the others."""
    summary = figures.summarise(_samples(2.0, 8.0))
    assert summary[Key("first_case_s", 8, "net")] == Spread(2.0, 2.0, 2.0, 5)
    assert summary[Key("further_case_ms", 8, "net")] == Spread(8.0, 8.0, 8.0, 5)


def test_all_promises_are_kept_at_their_edge() -> None:
    """A quarter of torchrun's time and 20 ms are still allowed."""
    assert _broken(_samples(2.5, 20.0)) == []


@pytest.mark.parametrize(
    ("samples", "promise"),
    [
        pytest.param(_samples(2.6, 8.0), "first case in at most 25%", id="slow-start"),
        pytest.param(_samples(2.0, 20.1), "a further case costs", id="dear-further-case"),
        pytest.param(_samples(2.0, 8.0, repetitions=4), "medians of 4 runs", id="too-few-runs"),
    ],
)
def test_a_promise_that_is_not_kept_is_named(samples: list[Sample], promise: str) -> None:
    """Each promise is broken alone, and the sentence says which one it is."""
    (broken,) = _broken(samples)
    assert promise in broken


def test_what_was_not_measured_is_not_kept() -> None:
    """Without figures nothing is promised: no bar passes on an empty summary."""
    assert [text.partition(":")[2].strip() for text in _broken([])] == [
        "not measured, both are needed on 8 ranks",
        "not measured",
        "",
    ]


def test_csv_gives_back_what_was_written() -> None:
    """Columns are the fields; a figure that a launch does not tell is an empty cell."""
    (row,) = csv.DictReader(io.StringIO(results.rows_csv([_SAMPLE])))
    assert row["contender"] == "net"
    assert float(row["first_case_s"]) == 2.0
    assert row["further_case_ms"] == ""


def test_the_summary_csv_has_a_row_a_spread() -> None:
    """What it is of and the figures stand in one row."""
    rows = list(csv.DictReader(io.StringIO(results.summary_csv(figures.summarise(_samples(2.0, 8.0))))))
    assert {(row["quantity"], row["contender"], row["median"]) for row in rows} >= {
        ("first_case_s", "torchrun", "10"),
        ("further_case_ms", "net", "8"),
    }


def test_the_table_puts_contenders_side_by_side() -> None:
    """A line a quantity and rank count, in the contenders' order."""
    lines = results.table(figures.summarise(_samples(2.0, 8.0))).splitlines()
    assert lines[0].split() == ["ranks", "net", "torchrun"]
    assert lines[1].split("  ")[-2:] == ["2.00 [2.00 .. 2.00]", "10.0 [10.0 .. 10.0]"]


@pytest.mark.parametrize("value", [0.0, 0.4123, 9.314, 10.25, 99.96, 4710.3])
def test_short_numbers_keep_three_digits(value: float) -> None:
    """What is printed is within half a percent of the figure."""
    assert abs(float(results.short(value)) - value) <= 0.005 * value


def test_the_picture_is_well_formed_and_complete() -> None:
    """A bar for every spread, none outside its panel, and markup in names is text."""
    samples = [replace(one, contender=f"<{one.contender}>") for one in _samples(2.0, 8.0)]
    summary = figures.summarise(samples)
    drawn = ElementTree.fromstring(plot.svg(summary, "a & b"))
    bars = drawn.findall(".//{*}g/{*}rect")
    assert len(bars) == len(summary)
    assert all(float(bar.get("y")) >= 0.0 and float(bar.get("height")) > 0.0 for bar in bars)
    assert "a & b" in [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_a_taller_bar_is_a_larger_figure() -> None:
    """Linear where shares are read off, logarithmic for the cost of a further case."""
    drawn = ElementTree.fromstring(plot.svg(figures.summarise(_samples(2.5, 12.0)), ""))
    panels = [[float(bar.get("height")) for bar in panel.findall("{*}rect")] for panel in drawn.findall("{*}g")]
    net, torchrun = panels[0]
    assert round(torchrun / net, 1) == 4.0
    assert torchrun == 200.0, "the tallest bar fills its panel"
    net, torchrun = panels[-1]
    assert net < torchrun < 10 * net
