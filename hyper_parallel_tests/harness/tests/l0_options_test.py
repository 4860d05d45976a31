"""The launcher's command line, joined with what Bazel tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.harness.options import Options, UsageError, parse


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "l1_topic_test.py"
    path.touch()
    return str(path)


def test_defaults(file):
    """A file is enough: one card, the layer that its name carries."""
    options = parse([file], {})
    assert (options.files, options.cards, options.layer) == ((file,), 1, "l1")
    assert (options.shard, options.shards, options.test_filter) == (0, 1, "")
    assert options.target_timeout is None


def test_words_of_pytest_pass_through(file):
    """What is neither a flag of the launcher nor a file goes to pytest, an option's value included."""
    options = parse([file, "-k", "not slow", "--durations=5", "--maxfail", "2", "-v"], {})
    assert options.files == (file,)
    assert options.pytest_args == ("-k", "not slow", "--durations=5", "--maxfail", "2", "-v")


def test_one_case(file):
    """PATH::case is a file too."""
    assert parse([f"{file}::test_case[a::b]"], {}).files == (f"{file}::test_case[a::b]",)


@pytest.mark.parametrize("words", [["--pdb-rank=1"], ["--pdb_rank=1"], ["--pdb-rank", "1"], ["--pdb_rank", "1"]])
def test_dashes(file, words):
    """Flags may be spelt with dashes or underscores, their values behind = or a space, anywhere."""
    assert parse(["--cards=2", file, *words], {}).pdb_rank == 1


def test_each_call_starts_afresh(file):
    """A flag of one call does not stay for the next."""
    parse([file, "--cards=8", "--layer=l2"], {})
    assert (parse([file], {}).cards, parse([file], {}).layer) == (1, "l1")


def test_jobs(file):
    """With --jobs one rank runs the cases, and the cards are those of its jobs."""
    options = parse([file, "--cards=4", "--jobs"], {})
    assert (options.cards, options.ranks) == (4, 1)
    assert parse([file, "--cards=4"], {}).ranks == 4


def test_proofs(file, tmp_path):
    """Each proof is a part with its own catalogues, files and layer; the launch loads what all of them need."""
    other = str(tmp_path / "l0_other_test.py")
    Path(other).touch()
    options = parse([f"--proof=a,b:{file}", f"--proof=c:{other},{file}"], {})
    assert (options.faults, options.files, options.layer) == (("a", "b", "c"), (file, other), "")
    assert [(part.faults, part.files) for part in options.parts] == [(("a", "b"), (file,)), (("c",), (other, file))]
    assert [part.layer for part in options.parts] == ["l1", ""]
    assert parse([file], {}).parts == (parse([file], {}),)


def test_layer_decides_about_the_process_group(file):
    """Layer 0 is pure logic: its ranks have no process group."""
    assert parse([file], {}).process_group
    assert not parse([file, "--layer=l0"], {}).process_group


def test_bazel(file, tmp_path):
    """The test encyclopedia's variables are understood."""
    told = {
        "TESTBRIDGE_TEST_ONLY": "letter",
        "TEST_SHARD_INDEX": "1",
        "TEST_TOTAL_SHARDS": "3",
        "TEST_TIMEOUT": "300",
        "XML_OUTPUT_FILE": str(tmp_path / "test.xml"),
        "TEST_UNDECLARED_OUTPUTS_DIR": "relative",
    }
    options = parse([file], told)
    assert (options.test_filter, options.shard, options.shards) == ("letter", 1, 3)
    assert options.target_timeout == 300
    assert options.xml == tmp_path / "test.xml"
    assert options.outputs == Path.cwd() / "relative"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no test file given"),
        (["nowhere_test.py"], "nowhere_test.py: no such file"),
        (["--cards=0"], "cards"),
        (["--device=tpu"], "device"),
        (["--cards=2", "--pdb-rank=2", "."], "ranks are 0..1"),
        (["--fault=a", "--faults=b", "."], "give one of them"),
        (["--proof=a:.", "."], "its own files"),
        (["--proof=a:.", "--fault=b"], "give one of them"),
        (["--proof=a"], "expected CATALOGUE"),
        (["--proof=a:nowhere_test.py"], "nowhere_test.py: no such file"),
        (["--cards=2", "--jobs", "--pdb-rank=1", "."], "only rank 0 runs the cases"),
        (["--cards=2", "--jobs", "--layer=l0", "."], "layer 0 runs in one process"),
    ],
)
def test_wrong_usage(words, says):
    """An error says what is wrong."""
    with pytest.raises(UsageError, match=says):
        parse(words, {})


def test_names_are_relative_to_the_working_directory(monkeypatch, tmp_path):
    """Cases are named from the working directory where the files lie below it, else from where the files lie."""
    monkeypatch.chdir(tmp_path)
    assert Options(files=("a/b_test.py", "c_test.py::test_case")).root == tmp_path
    assert Options(files=("a/../../elsewhere/b_test.py",)).root == tmp_path.parent / "elsewhere"
    assert Options(files=("/x/a/b_test.py", "/x/c/d_test.py")).root == Path("/x")
