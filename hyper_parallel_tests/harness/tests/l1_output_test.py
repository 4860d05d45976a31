"""Reports hold what cases write, in bounds."""

from __future__ import annotations

import re

import pytest

from hyper_parallel_tests.harness.tests.launched import Run, launch

pytestmark = pytest.mark.watchdog(300)

KIB = 2**10


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(tmp_path_factory.mktemp("output"), "output_program")


def test_neighbours_of_output_pass(run):
    """Every healthy case runs and passes."""
    assert run.code == 1
    assert len(run.neighbours()) == 6
    assert set(run.neighbours().values()) == {"passed"}


def test_flood(run):
    """Of 100 MiB the report shows the first and the last lines, and says how much it leaves out."""
    text = run["test_flood"].text
    assert len(text) < 64 * KIB
    assert "the first line" in text
    assert "the last line" in text
    assert int(re.search(r"\[\.\.\. (\d+) bytes of output left out \.\.\.\]", text)[1]) > 99 * KIB**2


def test_flood_is_not_kept(run):
    """The kept log of a rank stays small after a flood, also of a case that passes."""
    assert run["test_flood_of_a_passing_case"].outcome == "passed"
    assert (run.outputs / "rank0.log").stat().st_size < 512 * KIB


def test_unicode(run):
    """Text of any language is reported as it is."""
    case = run["test_unicode"]
    assert "größer als 世界" in case.message
    assert "grüße, 世界, ☃" in case.text
    assert "grüße, 世界, ☃" in run.terminal


def test_binary(run):
    """What is no text, and what a terminal would act on, is shown as escapes."""
    case = run["test_binary"]
    assert r"\x00\x1b[31mred\x1b[0m \ud800" in case.message
    assert "\ufffd" in case.text
    assert "\x00" not in run.terminal
    assert "\x1b[31m" not in run.terminal


@pytest.mark.parametrize("name", ["test_long_assertion", "test_long_message"])
def test_long_text(run, name):
    """A failure's text of megabytes is cut in the middle, its headline after a line."""
    case = run[name]
    assert len(case.message) < KIB
    assert len(case.text) < 256 * KIB


def test_cut_text_says_so(run):
    """A text that is cut says how much is missing."""
    assert "characters left out" in run["test_long_message"].text


def test_output_without_end_of_line(run):
    """What a case prints is in its own report, also without the end of a line."""
    assert "no end of line" in run["test_output_without_end_of_line"].text


def test_output_of_a_child(run):
    """What a child process writes is in the report too."""
    assert "a child speaks" in run["test_output_of_a_child"].text
