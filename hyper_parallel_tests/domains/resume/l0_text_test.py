"""Configurations as text: what YAML reads two ways, overrides, and files."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.resume.configurations import accepted, leaves, refused
from hyper_parallel_tests.harness import contract

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected keys at the top, found nothing"),
        ("# nothing but this\n", "expected keys at the top, found nothing"),
        ("null", "expected keys at the top, found nothing"),
        ("- training", "expected keys at the top, found a list"),
        ("training", "expected keys at the top, found text"),
        ("training: [", "no valid YAML"),
        ("\ttraining: {}", "no valid YAML"),
        ("training: {}\n---\nparallel: {}", "no valid YAML"),
        ("training: *steps", "no valid YAML"),
    ],
    ids=["empty", "comment", "null", "list", "word", "broken", "tab", "two_documents", "unknown_alias"],
)
def test_no_configuration(engine, text, words):
    """A text without keys at its top is an error that says so."""
    (line,) = refused(engine, text)
    assert line.startswith(f"the text: {words}")


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("training:\n  steps: 3\n  seed: 1\n  steps: 4", "training.steps", "given twice, in line 2 and in line 4"),
        ("parallel: {}\ntraining: {}\nparallel: {tp: 2}", "parallel", "given twice, in line 1 and in line 3"),
        ("parallel:\n  <<: {tp: 2}", "parallel.<<", "merge keys are not read, in line 2"),
        ("parallel:\n  1: 2", "parallel.1", "a key must be text, in line 2"),
        ("parallel: {[tp]: 2}", "parallel.?", "a key must be text"),
        ("data: {shuffle: !!python/name:os.system ''}", "data.shuffle", "is not read"),
        ("training: !!python/object/apply:os.system [id]", "training", "tags are not read"),
        ("parallel: {tp: !!int two}", "parallel.tp", "is not read for 'two'"),
        ("training: &t {steps: *t}", "training.steps", "an alias of what it stands in"),
    ],
    ids=["key_twice", "section_twice", "merge", "number", "list", "name", "object", "cast", "recursion"],
)
def test_refused_text(engine, text, path, words):
    """What a lenient reader would take one way or another is an error with the path of the key, and the line."""
    (line,) = refused(engine, text)
    assert line.startswith(f"{path}: ")
    assert words in line


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("optimizer.lr", "1e-3", 0.001),
        ("optimizer.lr", "1E2", 100.0),
        ("optimizer.lr", ".5", 0.5),
        ("training.steps", "010", 10),
        ("training.steps", "0o10", 8),
        ("training.steps", "0x10", 16),
        ("checkpoint.folder", "yes", "yes"),
        ("checkpoint.folder", "NO", "NO"),
        ("checkpoint.folder", "2026-11-30", "2026-11-30"),
        ("checkpoint.folder", "1:30", "1:30"),
        ("checkpoint.folder", "1_000", "1_000"),
        ("checkpoint.folder", "'null'", "null"),
        ("checkpoint.folder", "~", None),
        ("checkpoint.folder", "'010'", "010"),
    ],
)
def test_scalars(engine, path, text, expected):
    """Plain scalars are those of YAML 1.2: the words yes and no are text, and so are dates; 010 is ten."""
    section, _, key = path.partition(".")
    value = leaves(accepted(engine, f"{section}:\n  {key}: {text}"))[path]
    assert (value, type(value)) == (expected, type(expected))


@contract("RS-0-01")
def test_anchors(engine):
    """An alias is its anchor's value, and an override of the one leaves the other alone."""
    text = "logging: &each {interval: 3}\nvalidation: *each\noptimizer: {lr: &rate 0.5, weight_decay: *rate}"
    config = engine.parse_training_config(text, ["--logging.interval=4"])
    assert (config.logging.interval, config.validation.interval) == (4, 3)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.5, 0.5)


@contract("RS-0-01")
def test_nested_aliases(engine):
    """Aliases of aliases, which stand for a thousand million words, are refused at once, in short lines."""
    lines = refused(engine, BOMB)
    assert [line[:1] for line in lines] == list("abcdefghi")
    assert all(len(line) < 200 for line in lines)


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("parallel.tp=2", "parallel.tp=2"),
        ("--parallel.tp", "--parallel.tp"),
        ("--parallel..tp=2", "--parallel..tp=2"),
        ("--parallel.tq=2", "parallel.tq"),
        ("--parallel.tp=two", "parallel.tp"),
        ("--parallel.tp.size=2", "parallel.tp"),
        ("--parallel.tp=[", "parallel.tp"),
        ("--parallel=2", "parallel"),
    ],
    ids=["no_dashes", "no_value", "no_key", "unknown", "type", "too_deep", "broken", "section"],
)
def test_refused_override(engine, override, path):
    """An override that sets nothing is an error, with its path as far as it has one."""
    (line,) = refused(engine, "parallel: {tp: 1}", override)
    assert line.startswith(f"{path}: ")


@contract("RS-0-01")
def test_overrides(engine):
    """Overrides win over the text, the last one over others, and a value may have the sign of equality in it."""
    overrides = ["--parallel.tp=2", "--parallel.tp=4", "--checkpoint.folder=a=b"]
    config = engine.parse_training_config("parallel: {tp: 1, dp: 2}", overrides)
    assert (config.parallel.tp, config.parallel.dp, config.checkpoint.folder) == (4, 2, "a=b")


@contract("RS-0-01")
def test_file(engine, artifacts):
    """A file and overrides give what text and overrides give."""
    path = artifacts / "run.yaml"
    path.write_text("parallel: {tp: 2}", encoding="utf-8")
    found = engine.parse_training_args([str(path), "--training.steps=3"])
    assert found == engine.parse_training_config("parallel: {tp: 2}", ["--training.steps=3"])


@contract("RS-0-01")
def test_no_file(engine, artifacts):
    """A file that is not there, or is no text, is an error with its path."""
    absent, binary = artifacts / "absent.yaml", artifacts / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00parallel")
    for path in (absent, binary):
        with pytest.raises(ValueError, match=f"^{path}: expected a readable file"):
            engine.parse_training_args([str(path)])
