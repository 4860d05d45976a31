"""Reading BUILD files: which test files a target has."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.contract_check.build_files import (
    Unreadable,
    all_below,
    build_file_of,
    fault_tests,
    layer_tests,
)
from hyper_parallel_tests.contract_check.samples import SCENARIO

FILES = [
    "l0_a_test.py",
    "l0_b_test.py",
    "l1_a_test.py",
    "setting.py",
    "deep/l0_c_test.py",
    "other/l0_d_test.py",
]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with some files, and one below it that is a package of its own."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "other/BUILD.bazel").touch()
    return tmp_path


def targets(package: Path, text: str) -> dict[str, list[str]]:
    """Target name -> source files of a BUILD file."""
    (package / "BUILD.bazel").write_text(text)
    return {target.name: list(target.srcs) for target in layer_tests(package / "BUILD.bazel")}


@pytest.mark.parametrize(
    ("srcs", "files"),
    [
        ('["l0_a_test.py", ":l0_b_test.py"]', ["l0_a_test.py", "l0_b_test.py"]),
        ('glob(["l0_*_test.py"])', ["l0_a_test.py", "l0_b_test.py"]),
        ('glob(include = ["l?_a_test.py"])', []),
        ('glob(["*_test.py"], exclude = ["l1_*"])', ["l0_a_test.py", "l0_b_test.py"]),
        ('glob(["**/l0_*_test.py"])', ["deep/l0_c_test.py", "l0_a_test.py", "l0_b_test.py"]),
        ('glob(["deep/**"])', ["deep/l0_c_test.py"]),
        ('glob(["l1_*"]) + ["l0_a_test.py"]', ["l1_a_test.py", "l0_a_test.py"]),
        ("FILES", ["l1_a_test.py"]),
    ],
)
def test_srcs_are_evaluated(package, srcs, files):
    """Lists, globs, sums and names of the file; a glob stops where another package begins."""
    head = 'load("//tools/rules:defs.bzl", "layer_test")\nFILES = ["l1_a_test.py"]\n'
    text = f'{head}layer_test(name = "l0", srcs = {srcs})\n'
    assert targets(package, text) == {"l0": files}


@pytest.mark.parametrize(
    "name",
    [
        '"l1_{}card".format(n)',
        '"l1_{cards}card".format(cards = n)',
        '"l1_%dcard" % n',
        '"%s_%dcard" % ("l1", n)',
        '"l1_" + str(n) + "card"',
    ],
)
def test_targets_of_a_comprehension_are_read(package, name):
    """A target for each number of cards, whichever way its name is put together."""
    text = f'CARDS = [2, 4]\n[layer_test(name = {name}, srcs = ["l1_a_test.py"]) for n in CARDS]\n'
    assert targets(package, text) == {"l1_2card": ["l1_a_test.py"], "l1_4card": ["l1_a_test.py"]}


@pytest.mark.parametrize(
    ("name", "layer"),
    [("l0", "l0"), ("l2_4card", "l2"), ("l2_4card_slow", "l2"), ("l9_2card", ""), ("faults", "")],
)
def test_the_name_tells_the_layer(package, name, layer):
    """As the rules read it; a name of another form has no layer."""
    (package / "BUILD.bazel").write_text(f'layer_test(name = "{name}", srcs = [])\n')
    (target,) = layer_tests(package / "BUILD.bazel")
    assert (target.layer, target.line) == (layer, 1)


def test_other_rules_are_none_of_its_business(package):
    """Libraries, fault tests and constants that cannot be read do not disturb."""
    lines = [
        "X = select({})",
        "py_library(name = 'a', srcs = select({}))",
        "fault_test(name = 'faults', srcs = X)",
    ]
    assert targets(package, "\n".join(lines)) == {}


@pytest.mark.parametrize("srcs", ["select({})", "UNKNOWN", "[x for x in y]"])
def test_what_cannot_be_read_is_an_error(package, srcs):
    """Nothing is guessed: the message shows the expression and its line."""
    with pytest.raises(Unreadable, match="line 2"):
        targets(package, f'\nlayer_test(name = "l0", srcs = {srcs})\n')


@pytest.mark.parametrize("text", ["\nlayer_test(", "\n[layer_test(name = n + m, srcs = []) for n in [] for m in []]"])
def test_a_file_that_cannot_be_read_is_an_error(package, text):
    """No Starlark, or a loop in a loop."""
    with pytest.raises(Unreadable, match="line 2"):
        targets(package, text)


def test_the_nearest_build_file_counts(package):
    """A file belongs to the package that is nearest above it, and to none outside the tree."""
    (package / "BUILD.bazel").touch()
    assert build_file_of(package / "other/l0_d_test.py", package) == package / "other/BUILD.bazel"
    assert build_file_of(package / "deep/l0_c_test.py", package) == package / "BUILD.bazel"
    assert build_file_of(package / "deep/l0_c_test.py", package / "deep") is None


def test_all_build_files_are_found(package):
    """One a package: where there are two, Bazel reads BUILD.bazel."""
    (package / "BUILD.bazel").touch()
    (package / "BUILD").touch()
    assert all_below(package) == [package / "BUILD.bazel", package / "other/BUILD.bazel"]


@pytest.mark.parametrize(
    ("folder", "given", "catalogue"),
    [
        ("domains/col", "", ["col"]),
        ("domains/col/deep", "", ["col"]),
        ("endurance", "catalogue = None", ["endurance"]),
        ("domains/col", 'catalogue = ["//hyper_parallel_tests/faults:col_mesh", ":own"]', ["col_mesh", "own"]),
        ("domains/col", "catalogue = LIST + [':own']", ["col_mesh", "own"]),
        ("domains/col", "catalogue = ['//faults/col']", ["col"]),
    ],
)
def test_the_catalogue_of_a_fault_test_is_read(tmp_path, folder, given, catalogue):
    """Names of labels; where none is given, the domain's."""
    build_file = tmp_path / folder / "BUILD.bazel"
    build_file.parent.mkdir(parents=True)
    head = 'LIST = ["//hyper_parallel_tests/faults:col_mesh"]\n'
    build_file.write_text(f'{head}fault_test(name = "faults", srcs = ["l0_a_test.py"], {given})\n')
    (target,) = fault_tests(build_file, tmp_path)
    assert (target.name, list(target.srcs), list(target.catalogue)) == ("faults", ["l0_a_test.py"], catalogue)


def test_proofs_of_a_fault_test_are_read(package):
    """Each catalogue goes with its own files."""
    proofs = '{"//x/faults:a": ["l0_a_test.py"], ":b": FILES + glob(["l1_*"])}'
    (package / "BUILD.bazel").write_text(f'FILES = [":l2_b_test.py"]\nfault_test(name = "faults", proofs = {proofs})\n')
    found = [(target.name, target.catalogue, target.srcs) for target in fault_tests(package / "BUILD.bazel", package)]
    assert found == [("faults", ("a",), ("l0_a_test.py",)), ("faults", ("b",), ("l2_b_test.py", "l1_a_test.py"))]


def test_fault_tests_of_a_comprehension_are_read(package):
    """As layer_test targets are; what is a layer_test is no fault_test."""
    lines = [
        'layer_test(name = "l0", srcs = select({}))',
        '[fault_test(name = "faults_{}card".format(n), srcs = glob(["l1_*"])) for n in [2, 4]]',
    ]
    (package / "BUILD.bazel").write_text("\n".join(lines))
    found = {target.name: list(target.srcs) for target in fault_tests(package / "BUILD.bazel", package)}
    assert found == {"faults_2card": ["l1_a_test.py"], "faults_4card": ["l1_a_test.py"]}


def test_a_registry_has_targets(package):
    """Each scenario has one of its layer and cards, and its catalogue one for all scenarios of as many cards."""
    (package / "registry.toml").write_text(SCENARIO + SCENARIO.replace("IX-07", "IX-08").replace("fsdp_", "pipeline_"))
    assert targets(package, "") == {
        "l3_4card_fsdp_recomputation": ["l3_fsdp_recomputation_test.py"],
        "l3_4card_pipeline_recomputation": ["l3_pipeline_recomputation_test.py"],
    }
    [proof] = fault_tests(package / "BUILD.bazel", package)
    assert proof.catalogue == ("interactions_recomputation",)
    assert [path.name for path in proof.files] == ["l3_fsdp_recomputation_test.py", "l3_pipeline_recomputation_test.py"]
