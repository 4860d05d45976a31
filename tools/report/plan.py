"""Print the table from plan to assertion: `tools/bazel run //tools/report:plan` or `python -m tools.report.plan`.

The exit code is 1 where the plan has a hole: a case of it without contract, case, target or assertion.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from absl import app, flags

import hyper_parallel_tests
from hyper_parallel_tests.contract_check.build_files import Unreadable
from hyper_parallel_tests.contract_check.tree import Tree
from hyper_parallel_tests.harness.contracts import LAYERS, ContractError
from tools.report.plan_table import holes, markdown, rows

_DOMAINS = flags.DEFINE_list("domains", [], "folders of hyper_parallel_tests/domains to tell of (default: all)")
_LAYERS = flags.DEFINE_list("layers", [], "layers of contracts to tell of, as l0,l1 (default: all)")
flags.register_validator(
    "layers", lambda layers: set(layers) <= set(LAYERS), f"expected some of {', '.join(LAYERS)}, comma-separated"
)
_OUT = flags.DEFINE_string("out", "", "write the table to this file, relative to where the command was typed")


def main(argv: list[str]) -> int:
    """Print or write the table that the flags ask for; returns 1 where it has a hole."""
    if argv[1:]:
        raise app.UsageError(f"unexpected arguments {argv[1:]}: everything is a flag")
    tree = Tree(Path(hyper_parallel_tests.__path__[0]))
    try:
        return show(tree, _DOMAINS.value, _LAYERS.value, _OUT.value)
    except (ContractError, Unreadable) as error:
        print(f"plan: there is no table until this is corrected\n{error}", file=sys.stderr)
        return 1


def show(tree: Tree, domains: list[str], layers: list[str], out: str = "") -> int:
    """Print the table of a tree, or write it to `out`; returns 1 where it has a hole.

    Raises:
        app.UsageError: there is no such domain.
    """
    known = {contract.path.parent.name for contract in tree.contracts.values()}
    if unknown := set(domains) - known:
        raise app.UsageError(f"no domain {', '.join(sorted(unknown))}: expected some of {', '.join(sorted(known))}")
    table = rows(tree, domains, layers)
    missing = holes(table, layers, whole=not domains)
    text = markdown(table, missing)
    if out:
        path = Path(os.environ.get("BUILD_WORKING_DIRECTORY", ".")).absolute() / out
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {len(table)} rows, {len(missing)} holes", *missing, sep="\n")
    else:
        print(text, end="")
    return 1 if missing else 0


if __name__ == "__main__":
    app.run(main)
