"""The ledger: what it holds, what it refuses, and that no case brings its own number."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest
import torch

from hyper_parallel_tests.harness.judging.parity import assert_close
from hyper_parallel_tests.harness.judging.tolerances import (
    Band,
    Ledger,
    LedgerError,
    Tolerance,
    ledger,
    load,
    verified,
)

ROW = '[a]\nloss = 0.1\nnorm = 0.2\ntensor = 0.3\nsource = "s"\nreason = "r"\n'
BAND = '[a]\nlow = -0.5\nhigh = 1.5\nsource = "s"\nreason = "r"\n'

# The self-consistency matrix of the FSDP plan: loss and norm are the same number in each of its rows.
MATRIX = {
    "fsdp_1d_fp32": 1e-5,
    "fsdp_1d_bf16": 1e-3,
    "hsdp_2d_fp32": 1e-5,
    "tp_fsdp_fp32": 1e-5,
    "ep_fsdp_fp32": 1e-4,
    "ac_fsdp_fp32": 1e-5,
    "ac_swap_fsdp_fp32": 1e-5,
    "pp_fsdp_fp32": 1e-5,
}


def written(path: Path, **files: str) -> Path:
    """A ledger's folder: each file's name and text."""
    for name, text in files.items():
        (path / f"{name}.toml").write_text(text)
    return path


@pytest.mark.parametrize("name", MATRIX)
def test_ledger_holds_the_plans_matrix(name):
    """Each row of the plan is in the ledger with the plan's numbers."""
    row = ledger[name]
    assert (row.loss, row.norm, row.tensor) == (MATRIX[name],) * 3


def test_every_row_says_where_from_and_why():
    """No row without a source and a reason."""
    assert all(row.source and row.reason for row in ledger.values())


def test_exact_allows_nothing():
    """The row for bitwise equality is zero throughout."""
    exact = ledger["exact"]
    assert (exact.loss, exact.norm, exact.tensor, exact.relative) == (0, 0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_collectives_rows_follow_the_precision_of_their_dtype(dtype):
    """Seven additions of eight ranks fit into each row, and it allows hardly more than they can err by."""
    short = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    half_eps = torch.finfo(dtype).eps / 2
    assert 7 * half_eps <= ledger[f"collectives_{short}"].relative <= 20 * half_eps


def test_a_row_with_ends_is_a_band(tmp_path):
    """Both ends belong to it, and what is no number does not."""
    band = load(written(tmp_path, common=BAND))["a"]
    assert isinstance(band, Band)
    assert [one in band for one in (-0.6, -0.5, 1.5, 1.6, float("nan"))] == [False, True, True, False, False]


def test_unknown_configuration_names_near_ones():
    """A typing error is answered with the names that may be meant."""
    with pytest.raises(LedgerError, match="fsdp_1d_fp32"):
        ledger["fsdp1d_fp32"]


def test_load_reads_all_keys(tmp_path):
    """A row is read as written, `relative` is zero where it is not given."""
    row = load(written(tmp_path, common=ROW))["a"]
    assert (row.name, row.loss, row.norm, row.tensor, row.relative) == ("a", 0.1, 0.2, 0.3, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROW + "extra = 1\n", "unknown key 'extra'"),
        (ROW.replace('reason = "r"\n', ""), "lacks reason"),
        (ROW.replace('"r"', '"  "'), "reason must say something"),
        (ROW.replace('source = "s"', "source = 1"), "source must say something"),
        (ROW.replace("norm = 0.2\n", ""), "lacks norm"),
        (ROW.replace("0.1", "-0.1"), "loss must be finite and not negative"),
        (ROW.replace("0.1", "nan"), "loss must be finite and not negative"),
        (ROW.replace("0.1", "inf"), "loss must be finite and not negative"),
        (ROW.replace("0.1", "true"), "loss must be a number"),
        (ROW.replace("0.1", '"0.1"'), "loss must be a number"),
        (ROW + "relative = -1\n", "relative must be finite and not negative"),
        (BAND.replace("low = -0.5\n", ""), "lacks low"),
        (BAND.replace("1.5", "inf"), "high must be finite"),
        (BAND.replace("1.5", "-1"), "high must not be below low"),
        (BAND + "loss = 1\n", "unknown key 'loss'"),
        ("a = 1\n", "expected a table"),
        ("", "has no rows"),
        ("[a\n", "no valid TOML"),
    ],
)
def test_load_refuses(tmp_path, text, said):
    """A ledger that is not whole is refused, and the message says what is wrong."""
    with pytest.raises(LedgerError) as caught:
        load(written(tmp_path, common=text))
    assert said in str(caught.value)


def test_load_lists_all_faults_of_all_files(tmp_path):
    """Two faults are told at once, each with its file."""
    with pytest.raises(LedgerError) as caught:
        load(written(tmp_path, common=ROW.replace("0.1", "-1"), shard=ROW.replace("0.2", "-2")))
    assert "common.toml: [a] loss" in str(caught.value)
    assert "shard.toml: [a] norm" in str(caught.value)


def test_a_configuration_has_one_row(tmp_path):
    """The same name in a second file is refused: which of them would hold?"""
    with pytest.raises(LedgerError, match=r"shard.toml: \[a\] is in another file already"):
        load(written(tmp_path, common=ROW, shard=ROW))


def test_a_domains_rows_are_read_with_the_common_ones(tmp_path):
    """A target sees common.toml and its domain's file as one ledger."""
    read = load(written(tmp_path, common=ROW, shard=ROW.replace("[a]", "[b]")))
    assert set(read) == {"a", "b"}


@pytest.mark.parametrize(
    "bring",
    [
        lambda: Tolerance("mine", 1.0, 1.0, 1.0, 0.0, "s", "r"),
        lambda: Tolerance("mine", 1.0, 1.0, 1.0, 0.0, "s", "r", object()),
        lambda: Band("mine", 0.0, 1.0, "s", "r"),
        lambda: dataclasses.replace(ledger["exact"], tensor=1.0),
        lambda: setattr(ledger["exact"], "tensor", 1.0),
        lambda: ledger.__setitem__("mine", ledger["exact"]),
    ],
    ids=["construct", "construct_with_seal", "band", "replace", "assign", "add_row"],
)
def test_a_case_cannot_bring_its_own_number(bring):
    """A tolerance can be neither made, nor changed, nor added."""
    with pytest.raises((TypeError, AttributeError)):
        bring()
    assert ledger["exact"].tensor == 0


def forged(change) -> Tolerance:
    made = copy.copy(ledger["exact"])
    change(made)
    return made


@pytest.mark.parametrize(
    "own",
    [
        lambda path: 1e-3,
        lambda path: load(written(path, common=ROW))["a"],
        lambda path: forged(lambda made: object.__setattr__(made, "tensor", 1.0)),
        lambda path: pickle.loads(pickle.dumps(ledger["exact"])),
    ],
    ids=["number", "other_ledger", "forged_copy", "pickled"],
)
def test_judging_takes_the_ledgers_own_rows_only(tmp_path, own):
    """Whatever else is given as a tolerance is refused before anything is compared."""
    with pytest.raises(TypeError):
        assert_close(torch.ones(2), torch.ones(2), own(tmp_path))


def test_a_row_changed_by_force_is_noticed():
    """Even a write around the frozen class is found out."""
    row = ledger["exact"]
    object.__setattr__(row, "tensor", 1.0)
    try:
        with pytest.raises(TypeError, match="cannot change it"):
            verified(row)
    finally:
        object.__setattr__(row, "tensor", 0.0)
    assert verified(row) is row


def test_ledger_reads_like_a_mapping(tmp_path):
    """Names, length and membership are those of the files."""
    read = load(written(tmp_path, common=ROW))
    assert isinstance(read, Ledger)
    assert (list(read), len(read), "a" in read, "b" in read) == (["a"], 1, True, False)
