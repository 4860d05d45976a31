"""What every table of contracts lets a person choose: domains, layers, and where it is written."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from absl import app, flags

from hyper_parallel_tests.contract_check.tree import Tree
from hyper_parallel_tests.harness.contracts import LAYERS

DOMAINS = flags.DEFINE_list("domains", [], "folders of hyper_parallel_tests/domains to tell of (default: all)")
LAYER_LIST = flags.DEFINE_list("layers", [], "layers of contracts to tell of, as l0,l1 (default: all)")
flags.register_validator(
    "layers", lambda layers: set(layers) <= set(LAYERS), f"expected some of {', '.join(LAYERS)}, comma-separated"
)
OUT = flags.DEFINE_string("out", "", "write the table to this file, relative to where the command was typed")


def check_domains(tree: Tree, domains: Collection[str]) -> None:
    """Refuse a domain that the tree has not.

    Raises:
        app.UsageError: it names the known ones.
    """
    known = {contract.path.parent.name for contract in tree.contracts.values()}
    if unknown := set(domains) - known:
        raise app.UsageError(f"no domain {', '.join(sorted(unknown))}: expected some of {', '.join(sorted(known))}")


def here() -> Path:
    """Where the command was typed, which need not be where it runs."""
    return Path(os.environ.get("BUILD_WORKING_DIRECTORY", ".")).absolute()


def put(page: str, out: str, *said: str) -> None:
    """Print a page; with `out` write it to that file instead, and print what is said of it."""
    if out:
        (here() / out).write_text(page, encoding="utf-8")
        print(f"{here() / out}: {said[0]}", *said[1:], sep="\n")
    else:
        print(page, end="")
