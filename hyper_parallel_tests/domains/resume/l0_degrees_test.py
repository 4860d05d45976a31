"""Parallel degrees against the ranks and the model that there are."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.harness import contract


def degrees(engine, world_size, *overrides, **model):
    config = engine.parse_training_config("training: {global_batch_size: 64}", overrides)
    return engine.check_parallel_degrees(config, world_size, **model)


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("world", "overrides", "expected"),
    [
        (1, [], {}),
        (4, [], {"fsdp": 4}),
        (8, ["--parallel.tp=2"], {"fsdp": 4, "tp": 2}),
        (8, ["--parallel.tp=2", "--parallel.pp=2", "--parallel.dp=2"], {"dp": 2, "fsdp": 1, "tp": 2, "pp": 2}),
        (8, ["--parallel.fsdp=2", "--parallel.dp=-1", "--parallel.cp=2"], {"dp": 2, "fsdp": 2, "cp": 2}),
    ],
    ids=["alone", "all_left", "some_left", "none_left", "another_left"],
)
def test_what_is_left(engine, world, overrides, expected):
    """The one degree that is -1 becomes what is left of the world."""
    found = degrees(engine, world, *overrides)
    assert found == dict.fromkeys(["pp", "dp", "fsdp", "cp", "ep", "tp"], 1) | expected


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("world", "overrides", "path", "words"),
    [
        (4, ["--parallel.tp=3"], "parallel.tp", "3 does not divide the world of 4 ranks"),
        (4, ["--parallel.pp=8"], "parallel.pp", "8 does not divide the world of 4 ranks"),
        (4, ["--parallel.tp=2", "--parallel.fsdp=1"], "parallel", "tp=2 takes 2 ranks, and the world has 4"),
        (8, ["--parallel.tp=4", "--parallel.dp=4"], "parallel", "dp=4 x tp=4 takes 16 ranks"),
        (4, ["--parallel.dp=-1"], "parallel.fsdp", "only one degree may be -1, and parallel.dp is"),
    ],
    ids=["no_divisor", "too_many", "too_few_used", "product", "two_left"],
)
def test_impossible_degrees(engine, world, overrides, path, words):
    """Degrees that do not multiply to the world are an error with the path of the one that is wrong."""
    with pytest.raises(ValueError, match=f"^{path}: .*{words}"):
        degrees(engine, world, *overrides)


@contract("RS-0-01")
@pytest.mark.parametrize(
    ("override", "model", "path"),
    [
        ("--parallel.tp=4", {"heads": 6}, "parallel.tp"),
        ("--parallel.tp=4", {"heads": 8, "kv_heads": 2}, "parallel.tp"),
        ("--parallel.pp=4", {"layers": 3}, "parallel.pp"),
        ("--parallel.ep=4", {"experts": 6}, "parallel.ep"),
        ("--parallel.cp=4", {"sequence": 6}, "parallel.cp"),
    ],
    ids=["heads", "kv_heads", "layers", "experts", "sequence"],
)
def test_degrees_of_a_model(engine, override, model, path):
    """So are degrees that the model cannot be divided by; the next smaller one does."""
    with pytest.raises(ValueError, match=f"^{path}: "):
        degrees(engine, 8, override, **model)
    degrees(engine, 8, override.replace("4", "2"), **model)


@contract("RS-0-01")
@pytest.mark.parametrize(("rows", "parts", "fits"), [(8, 2, True), (8, 1, True), (8, 4, False), (6, 1, False)], ids=str)
def test_rows(engine, rows, parts, fits):
    """The rows of a step divide among ranks that have rows of their own, here 4, and their micro-batches."""
    settings = [f"--training.global_batch_size={rows}", f"--training.gradient_accumulation_steps={parts}"]
    if fits:
        degrees(engine, 8, "--parallel.tp=2", *settings)
        return
    with pytest.raises(ValueError, match=f"^training.global_batch_size: {rows} rows do not divide among 4 ranks"):
        degrees(engine, 8, "--parallel.tp=2", *settings)
