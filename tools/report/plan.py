"""Print the table from plan to assertion: `tools/bazel run //tools/report:plan` or `python -m tools.report.plan`.

The exit code is 1 where the plan has a hole: a case of it without contract, case, target or assertion.
"""

from __future__ import annotations

import sys
from pathlib import Path

from absl import app

import hyper_parallel_tests
from hyper_parallel_tests.contract_check.build_files import Unreadable
from hyper_parallel_tests.contract_check.tree import Tree
from hyper_parallel_tests.harness.contracts import ContractError
from tools.report.choice import DOMAINS, LAYER_LIST, OUT, check_domains, put
from tools.report.plan_table import holes, markdown, rows


def main(argv: list[str]) -> int:
    """Print or write the table that the flags ask for; returns 1 where it has a hole."""
    if argv[1:]:
        raise app.UsageError(f"unexpected arguments {argv[1:]}: everything is a flag")
    tree = Tree(Path(hyper_parallel_tests.__path__[0]))
    try:
        return show(tree, DOMAINS.value, LAYER_LIST.value, OUT.value)
    except (ContractError, Unreadable) as error:
        print(f"plan: there is no table until this is corrected\n{error}", file=sys.stderr)
        return 1


def show(tree: Tree, domains: list[str], layers: list[str], out: str = "") -> int:
    """Print the table of a tree, or write it to `out`; returns 1 where it has a hole.

    Raises:
        app.UsageError: there is no such domain.
    """
    check_domains(tree, domains)
    table = rows(tree, domains, layers)
    missing = holes(table, layers, whole=not domains)
    put(markdown(table, missing), out, f"{len(table)} rows, {len(missing)} holes", *missing)
    return 1 if missing else 0


if __name__ == "__main__":
    app.run(main)
