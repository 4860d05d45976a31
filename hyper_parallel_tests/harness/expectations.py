"""What is known to be broken in the engine under test, held against what a case really did.

A run is red when reality differs from the expectation in either direction.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

from hyper_parallel_tests.harness import contracts
from hyper_parallel_tests.harness.channel import CaseInfo
from hyper_parallel_tests.harness.verdict import Verdict

# Packages beside the engines: what may be asked of one, and what several have in common.
_NO_ENGINES = {"port", "shared"}

# Ways in which a broken engine shows itself. A leak or ranks that disagree about skipping are the case's own defects.
_BROKEN = {"assertion", "error", "hang", "crash"}


def present_engines() -> list[str]:
    """Names of the engines that this target can see, by their packages; imports nothing of them."""
    packages = {path.parent.name for root in _roots() for path in root.glob("*/__init__.py")}
    return sorted(packages - _NO_ENGINES)


def _roots() -> list[Path]:
    spec = importlib.util.find_spec("hyper_parallel_tests.engines")
    return [Path(root) for root in (spec.submodule_search_locations or [])] if spec is not None else []


def engine_folder(engine: str) -> Path | None:
    """The folder of an engine's package, None where this target sees no engine. Imports nothing of it."""
    return next((root / engine for root in _roots() if (root / engine).is_dir()), None)


class Expectations:
    """What one engine's expectations say, for runs on `cards` cards."""

    def __init__(self, engine: str, cards: int) -> None:
        folder = engine_folder(engine)
        self._cards = cards
        self._broken = contracts.load_expectations(folder) if folder is not None else ()

    def known(self, info: CaseInfo, engine_version: str) -> contracts.Broken | None:
        """The known defect that makes this case fail, None where it must pass."""
        if not self._broken:
            return None
        return contracts.expected_broken(self._broken, info.nodeid, info.contracts, engine_version, self._cards)

    def hold(self, info: CaseInfo, verdict: Verdict, engine_version: str) -> Verdict:
        """The verdict with what was expected taken into account.

        A known defect that shows becomes `expected-broken`; a case that passes against its expectation becomes
        `unexpectedly-held`, which is red: the entry is to be removed.
        """
        known = self.known(info, engine_version)
        if known is None:
            return verdict
        what = known.contract or known.case
        if verdict.kind in _BROKEN:
            text = f"expected broken ({what}): {known.sentence}\n{verdict.text}"
            return replace(
                verdict,
                kind="expected-broken",
                headline=known.sentence,
                text=text,
                reproduction=known.reproduction.name,
            )
        if verdict.passed:
            head = f"holds although {what} is expected to be broken on engine version {engine_version}"
            if known.cards:
                head += f", {self._cards} card{'s' * (self._cards > 1)}"
            text = (
                f"{head}: {known.sentence}\n"
                f"If it is mended, remove the entry and {known.reproduction.name}; if not, the case is too weak."
            )
            return replace(
                verdict, kind="unexpectedly-held", headline=head, text=text, reproduction=known.reproduction.name
            )
        return verdict
