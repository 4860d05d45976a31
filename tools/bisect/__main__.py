"""Find the first revision of an engine that breaks a contract or, where the bad one is the older, that mends it.

    tools/bazel run //tools/bisect -- --contract FSDP-L1-02 --good REV --bad REV --checkout /path/to/engine

The engine's checkout is only read. "Broken" is what the cases do: a defect that the expectations know is broken too.
Exit codes: 0 found, 1 wrong usage, 2 the ends are not as said, 3 no answer, 130 interrupted.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from absl import app, flags

import hyper_parallel_tests
from hyper_parallel_tests.contract_check.tree import Tree
from tools.bisect import surveys
from tools.bisect.history import GitError, History
from tools.bisect.search import Answer, EndsAreWrong, NoAnswer, search

_CONTRACT = flags.DEFINE_string("contract", None, "id of the contract, as FSDP-L1-02", required=True)
_GOOD = flags.DEFINE_string("good", None, "a revision on which the contract holds", required=True)
_BAD = flags.DEFINE_string(
    "bad", None, "a revision on which it is broken; if it is the older one, the mending is sought", required=True
)
_ENGINE = flags.DEFINE_string("engine", "hyper_parallel", "the engine")
_CHECKOUT = flags.DEFINE_string(
    "checkout", "", "git checkout or git directory of the engine (default: what <ENGINE>_PATH names)"
)
_CARDS = flags.DEFINE_integer("cards", 0, "only targets with this many cards (default: any)", lower_bound=0)
_TARGET = flags.DEFINE_multi_string("target", [], "only this target; may be repeated")
_CASE = flags.DEFINE_string("case", "", "only cases whose node id contains this text")
_FIRST_PARENT = flags.DEFINE_bool("first_parent", False, "follow the main line only: the answer may be a merge")
_BAZEL_FLAG = flags.DEFINE_multi_string("bazel_flag", [], "a further flag for Bazel; may be repeated")

WRONG_USAGE, WRONG_ENDS, NOT_FOUND, INTERRUPTED = 1, 2, 3, 130


def main(argv: list[str]) -> int:
    """Search as the flags say; returns the exit code."""
    if argv[1:]:
        raise app.UsageError(f"unexpected arguments {argv[1:]}: everything is a flag")
    folder = Path(tempfile.mkdtemp(prefix="hyper_parallel_tests-bisect-"))
    try:
        print(_told(_search(folder)))
        return 0
    except (GitError, surveys.UnknownContract) as error:
        code, said = WRONG_USAGE, str(error)
    except EndsAreWrong as error:
        code, said = WRONG_ENDS, str(error)
    except NoAnswer as error:
        code, said = NOT_FOUND, str(error)
    except KeyboardInterrupt:
        code, said = INTERRUPTED, "interrupted; the same command goes on from here, with results from Bazel's cache"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"bisect: {said}", file=sys.stderr)
    return code


def _search(folder: Path) -> Answer:
    variable = f"{_ENGINE.value.upper()}_PATH"
    checkout = _CHECKOUT.value or os.environ.get(variable, "")
    if not checkout:
        raise GitError(f"no checkout of {_ENGINE.value}: name one with --checkout= or {variable}")
    here = Path(os.environ.get("BUILD_WORKING_DIRECTORY", ".")).absolute()
    package = Path(hyper_parallel_tests.__path__[0])
    workspace = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", package.parent))
    plan = surveys.plan(Tree(package), _CONTRACT.value, _CARDS.value, _TARGET.value, _CASE.value)
    tree, log = folder / "checkout", folder / "log"
    tree.mkdir()
    log.mkdir()
    history = History(here / checkout, tree)
    good, bad = history.commit(_GOOD.value), history.commit(_BAD.value)
    history.check_order(good, bad)
    print(f"{plan.contract} on {_ENGINE.value}: {', '.join(plan.functions)} in {', '.join(plan.targets)}", flush=True)
    return search(
        history,
        lambda checkout: surveys.run(plan, _ENGINE.value, checkout, workspace, log, _BAZEL_FLAG.value),
        good,
        bad,
        first_parent=_FIRST_PARENT.value,
        tell=lambda line: print(line, flush=True),
    )


def _told(answer: Answer) -> str:
    commit = answer.commit
    cases = [f"    {case.nodeid}: {case.headline}" for case in answer.cases.values()]
    return "\n".join(
        [
            "",
            f"first {'mended' if answer.mends else 'broken'} by {commit.id}",
            f"    {commit.date} {commit.author}",
            f"    {commit.subject}",
            *cases,
        ]
    )


if __name__ == "__main__":
    app.run(main)
