"""Configurations: what is wrong is an error with the path of its key; defaults are documented and round-trip."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyper_parallel_tests.domains.resume.configurations import leaves, refused
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("trainning: {}", "trainning", "did you mean training?"),
        ("training: {stepz: 3}", "training.stepz", "did you mean training.steps?"),
        ("parallel: {zzz: 3}", "parallel.zzz", "known are pp, dp"),
        ("steps: 3", "steps", "unknown key"),
    ],
    ids=["section", "near_miss", "nothing_near", "setting_at_the_top"],
)
def test_unknown_key(engine, text, path, words):
    """A key that is not known is an error with its path, and the one that may be meant."""
    (line,) = refused(engine, text)
    assert line.startswith(f"{path}: unknown key")
    assert words in line


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("parallel.tp", "two", "a whole number, found text 'two'"),
        ("parallel.tp", "'2'", "a whole number, found text '2'"),
        ("parallel.tp", "2.0", "a whole number, found a number 2.0"),
        ("parallel.tp", "true", "a whole number, found true or false"),
        ("parallel.tp", "", "a whole number, found nothing"),
        ("parallel.tp", "[2]", "a whole number, found a list"),
        ("parallel.tp", "{a: 2}", "a whole number, found keys"),
        ("optimizer.lr", "fast", "a number, found text"),
        ("optimizer.lr", "false", "a number, found true or false"),
        ("data.shuffle", "1", "true or false, found a whole number 1"),
        ("data.shuffle", "yes", "true or false, found text 'yes'"),
        ("data.shuffle", "'true'", "true or false, found text 'true'"),
        ("optimizer.name", "3", "text, found a whole number 3"),
        ("checkpoint.folder", "3", "text or null, found a whole number 3"),
        ("optimizer.betas", "0.9", "a list, each a number, found a number"),
        ("optimizer.betas", "[0.9, x]", "a list, each a number, found a list"),
        ("callbacks", "logging", "a list, each text, found text"),
        ("parallel", "3", "keys, found a whole number"),
        ("parallel", "", "keys, found nothing"),
        ("parallel", "[tp]", "keys, found a list"),
    ],
)
def test_wrong_type(engine, path, value, words):
    """A value of another type is an error with its path, what is expected and what is found; nothing is converted."""
    section, _, key = path.partition(".")
    text = f"{section}: {{{key}: {value}}}" if key else f"{section}: {value}"
    (line,) = refused(engine, text)
    assert line == f"{path}: expected {words}" or line.startswith(f"{path}: expected {words}")


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("training.steps", "0"),
        ("training.steps", "-1"),
        ("training.gradient_accumulation_steps", "0"),
        ("training.seed", "-1"),
        ("training.max_grad_norm", "-0.5"),
        ("parallel.tp", "0"),
        ("parallel.tp", "-2"),
        ("optimizer.name", "adam"),
        ("optimizer.lr", ".nan"),
        ("optimizer.lr", ".inf"),
        ("optimizer.lr", "-0.1"),
        ("optimizer.betas", "[0.9]"),
        ("optimizer.betas", "[0.9, 1.0]"),
        ("optimizer.eps", "0"),
        ("optimizer.momentum", "1"),
        ("lr_schedule.name", "linaer"),
        ("loss_scale.init_scale", "0"),
        ("loss_scale.growth_interval", "0"),
        ("checkpoint.interval", "-1"),
        ("best_metric.mode", "least"),
        ("callbacks", "[logging, loging]"),
        ("callbacks", "[logging, logging]"),
    ],
)
def test_impossible_value(engine, path, value):
    """A value that cannot be is an error with its path and the value."""
    section, _, key = path.partition(".")
    (line,) = refused(engine, f"{section}: {{{key}: {value}}}" if key else f"{section}: {value}")
    assert line.startswith(f"{path}: expected")
    assert "found" in line


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("training: {steps: 3}\nlr_schedule: {warmup_steps: 4}", "lr_schedule.warmup_steps"),
        ("callbacks: [checkpoint]\ncheckpoint: {interval: 2}", "checkpoint.folder"),
        ("callbacks: [checkpoint]\ncheckpoint: {folder: there}", "checkpoint.interval"),
        ("callbacks: [best_metric]", "callbacks"),
    ],
    ids=["warm_up_too_long", "no_folder", "no_interval", "best_of_nothing"],
)
def test_contradiction(engine, text, path):
    """Settings that contradict each other are an error with the path of one of them."""
    (line,) = refused(engine, text)
    assert line.startswith(f"{path}: ")


@contract("RS-0-01")
def test_all_that_is_wrong(engine):
    """Whatever is wrong is told at once, a line each."""
    lines = refused(engine, "training: {steps: none, sed: 1}\nparallel: {tp: 0}\nextra: 1")
    assert [line.partition(":")[0] for line in lines] == ["training.steps", "training.sed", "parallel.tp", "extra"]


@contract("RS-0-01")
def test_defaults(engine):
    """A configuration of nothing has the documented defaults, and the reference lists every setting with a sentence."""
    config, reference = engine.parse_training_config("{}"), engine.training_config_reference()
    assert {path: default for path, (_, default, _) in reference.items()} == leaves(config)
    assert all(kind and len(says.split()) > 1 for kind, _, says in reference.values())


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("training.steps", "7", 7),
        ("parallel.fsdp", "4", 4),
        ("optimizer.lr", "3", 3.0),
        ("optimizer.betas", "[0.5, 0.75]", (0.5, 0.75)),
        ("checkpoint.folder", "there", "there"),
        ("data.shuffle", "false", False),
        ("callbacks", "[logging]", ("logging",)),
    ],
)
def test_a_setting(engine, path, value, expected):
    """A setting that is given has its value, from the text and as an override, and all others their defaults."""
    section, _, key = path.partition(".")
    default = leaves(engine.parse_training_config("{}"))
    for config in (
        engine.parse_training_config(f"{section}: {{{key}: {value}}}" if key else f"{section}: {value}"),
        engine.parse_training_config("{}", [f"--{path}={value}"]),
    ):
        assert leaves(config) == default | {path: expected}
        assert type(leaves(config)[path]) is type(expected)


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)


@contract("RS-0-01")
@PROFILE
@given(
    folder=st.none()
    | texts
    | st.sampled_from(["yes", "null", "~", "1e3", "010", "0x1F", ".5", "<<", "- a", "# b", "a: b"]),
    lr=st.floats(0, 1e9, allow_subnormal=False),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    steps=st.integers(1, 2**40),
    shuffle=st.booleans(),
    callbacks=st.permutations(["logging", "validation", "best_metric"]),
)
@example(folder="no", lr=1e-05, betas=(0.9, 0.95), steps=1, shuffle=False, callbacks=["logging"])
def test_round_trip(engine, folder, lr, betas, steps, shuffle, callbacks):
    """What is written of a configuration is read as an equal one."""
    config = engine.parse_training_config("{}")
    config = replace(
        config,
        training=replace(config.training, steps=steps),
        optimizer=replace(config.optimizer, lr=lr, betas=betas),
        data=replace(config.data, shuffle=shuffle),
        checkpoint=replace(config.checkpoint, folder=folder),
        callbacks=tuple(callbacks),
    )
    assert engine.parse_training_config(engine.dump_training_config(config)) == config


@contract("RS-0-01")
def test_dump_has_every_setting(engine):
    """What is written names every setting, so that a run's file tells its defaults too."""
    text = engine.dump_training_config(engine.parse_training_config("{}"))
    assert all(f"{path.rpartition('.')[2]}:" in text for path in engine.training_config_reference())
