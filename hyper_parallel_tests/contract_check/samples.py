"""A small tree that keeps all rules, for tests that change it."""

from __future__ import annotations

from pathlib import Path

from hyper_parallel_tests.contract_check.tree import Tree

CONTRACTS = """
[[contract]]
id = "COL-0-01"
layer = "l0"
statement = "Ranks are row-major."
source = "S0"
mechanisms = []

[[contract]]
id = "COL-1-01"
layer = "l1"
statement = "A group can be made again."
source = "S0"
mechanisms = []
"""
SCENARIO = """
[[scenario]]
id = "IX-07"
name = "fsdp_recomputation"
statement = "Both together train as a single card does."
source = "S0 4.4"
capabilities = ["fully_shard", "activation_checkpoint"]
mechanisms = ["checkpoint"]
cards = 4
mesh = { dp = 2, tp = 2 }
models = ["mlp"]
faults = "interactions_recomputation"
risks = ["The second forward gathers again."]
assertions = ["Loss, norm and tensors are the single card's."]
"""
CASE = """
from hyper_parallel_tests.harness import contract

@contract("COL-{layer}-01")
def test_it(ledger):
    assert 1 + 1 == 2
"""
BUILD = """
layer_test(name = "l0", srcs = glob(["l0_*_test.py"]))
layer_test(name = "l1_2card", srcs = ["l1_b_test.py"])
fault_test(name = "faults_2card", srcs = glob(["*_test.py"]), catalogue = ["//hyper_parallel_tests/faults:col"])
"""
FAULTS = """
from hyper_parallel_tests.faults import fault

@fault(id="a", symptom="s", capability="c", layer="l0", must_fail=["COL-0-01", "COL-1-01"])
def a(patch):
    pass
"""
EXPECTATIONS = """
[[broken]]
contract = "COL-1-01"
engine_version = ">=2"
sentence = "It hangs."
reproduction = "_broken_again.py"
"""
LEDGER = """
[col_fp32]
loss = 0.0
norm = 0.0
tensor = 1e-6
source = "S0"
reason = "One rounding."
"""
FEATURES = """
[[feature]]
area = "Runtime"
line = "Groups"
contracts = ["COL-0-01", "COL-1-01"]

[[feature]]
area = "Tools"
line = "Graphs"
uncovered = "out of scope"
"""
GOOD = {
    "features.toml": FEATURES,
    "domains/col/contracts.toml": CONTRACTS,
    "domains/col/l0_a_test.py": CASE.format(layer=0),
    "domains/col/l1_b_test.py": CASE.format(layer=1),
    "domains/col/BUILD.bazel": BUILD,
    "faults/col.py": FAULTS,
    "engines/one/expectations/col.toml": EXPECTATIONS,
    "engines/one/expectations/_broken_again.py": "print(1)\n",
    "harness/judging/ledger/col.toml": LEDGER,
}
L0, L1 = "domains/col/l0_a_test.py", "domains/col/l1_b_test.py"


def changed(root: Path, changes: dict[str, str | None]) -> Tree:
    """The good tree in the empty folder `root` after changes: path -> new text, None to leave the file out."""
    for name, text in (GOOD | changes).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
    return Tree(root)


def case(body: str = "    assert 1 + 1 == 2", above: str = '@contract("COL-0-01")') -> str:
    """An l0 test file with one case."""
    head = "import pytest\nimport torch\nfrom hyper_parallel_tests.harness import contract\n"
    return f"{head}\n{above}\ndef test_it(ledger):\n{body}\n"
