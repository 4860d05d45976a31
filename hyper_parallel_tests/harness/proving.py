"""Prove a fault catalogue: under each fault the contracts that it names must fail, for the right reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from hyper_parallel_tests.faults import Fault, catalogue
from hyper_parallel_tests.harness import channel
from hyper_parallel_tests.harness.conductor import Conductor, Terminated, ignore_signals
from hyper_parallel_tests.harness.group import StartError
from hyper_parallel_tests.harness.options import Options
from hyper_parallel_tests.harness.reporter import Reporter
from hyper_parallel_tests.harness.verdict import Verdict

# A wrong result seen by an assertion, a case without an end, a dead rank. Any other exception may come from a fault
# that merely breaks the program, and proves nothing about the contract.
_KILLS = {"assertion", "hang", "crash"}


class ProvingSession:
    """pytest plugin: one item a fault, passed when every contract that it names has been killed.

    Each conductor has catalogues and files of its own, and its ranks end before those of the next start.
    """

    def __init__(self, conductors: Sequence[Conductor], reporter: Reporter) -> None:
        self._conductors = conductors
        self._reporter = reporter
        self._number = 0

    def pytest_collection(self, session: pytest.Session) -> bool:
        self._reporter.session = session
        return True

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.testscollected = 0
        try:
            for conductor in self._conductors:
                self._prove_all(session, conductor)
        except Terminated:
            session.testsfailed += 1
        finally:
            ignore_signals()
            for conductor in self._conductors:
                conductor.close()
        return True

    def _prove_all(self, session: pytest.Session, conductor: Conductor) -> None:
        try:
            proof = _Proof(conductor)
            faults = proof.faults()
            chosen = proof.enough(faults)
            if len(chosen) < len(faults):
                self._reporter.note(
                    f"{len(faults) - len(chosen)} more faults of these contracts are proven in the size nightly, "
                    f"or one by its name: {', '.join(one.id for one in faults if one not in chosen)}"
                )
            mine = self._of_this_shard(conductor.options, chosen)
            session.testscollected += len(mine)
            for number, one in enumerate(mine):
                if session.shouldfail or session.shouldstop:
                    return
                if conductor.time_is_up():
                    raise StartError(
                        "the target's time is up; not proven:\n" + "\n".join(left.id for left in mine[number:])
                    )
                self._report(proof, one)
            conductor.close()
        except StartError as error:
            self._reporter.error("start", str(error))
            conductor.drop()

    def _of_this_shard(self, options: Options, faults: Sequence[Fault]) -> list[Fault]:
        """Every so many fault of all proofs together."""
        mine = [one for number, one in enumerate(faults, self._number) if number % options.shards == options.shard]
        self._number += len(faults)
        return mine

    def _report(self, proof: _Proof, one: Fault) -> None:
        started = time.time()
        try:
            verdict, properties = proof.prove(one)
        except StartError as error:
            text = f"{one.id}: the ranks did not start with the fault applied, so it proves nothing\n{error}"
            verdict, properties = Verdict("error", (), None, text.partition("\n")[0], text), [("fault", one.id)]
        nodeid = f"faults/{one.capability}::{one.id}"
        location = (f"faults/{one.capability}", None, one.id)
        properties.append(("verdict", verdict.kind))
        self._reporter.outcome(nodeid, location, verdict, started, time.time() - started, properties)


class _Proof:
    """One conductor's catalogues against its cases.

    Raises:
        StartError: the ranks do not start even without a fault.
    """

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._cases = conductor.group().collected[0].cases

    def faults(self) -> list[Fault]:
        """Those of which these cases can show a contract to fail, in the order of the catalogues."""
        options = self._conductor.options
        faults = [one for name in options.faults for one in catalogue(name) if self._contracts(one)]
        return [one for one in faults if options.test_filter in one.id]

    def enough(self, faults: Sequence[Fault]) -> list[Fault]:
        """As many of them a contract as the default size proves; all in other sizes, and where some were asked for."""
        options = self._conductor.options
        most = options.faults_per_contract
        if most is None or options.size != "default" or options.test_filter:
            return list(faults)
        chosen, proven = [], Counter[str]()
        for one in faults:
            contracts = self._contracts(one)
            if any(proven[contract] < most for contract in contracts):
                chosen.append(one)
                proven.update(contracts)
        return chosen

    def prove(self, one: Fault) -> tuple[Verdict, list[tuple[str, object]]]:
        """The verdict over one fault, and what the XML tells of it."""
        properties: list[tuple[str, object]] = [("fault", one.id)]
        failures: list[str] = []
        for contract in self._contracts(one):
            killer, tried = self._kill(one, contract)
            if killer:
                properties.append((f"kill {contract}", killer))
            else:
                failures.append(f"{contract} survived:\n" + "\n".join(tried))
        if not failures:
            return Verdict("passed", (), None, "killed", ""), properties
        head = f"{one.id}: not noticed by {len(failures)} of {len(self._contracts(one))} contracts"
        text = "\n".join([head, f"what a user would see: {one.symptom}", *failures])
        return Verdict("survived", (), None, head, text), properties

    def _contracts(self, one: Fault) -> list[str]:
        """The contracts of `one` that the files of this target can show to fail."""
        cited = {contract for info in self._cases for contract in info.contracts}
        return [contract for contract in one.must_fail if contract in cited]

    def _kill(self, one: Fault, contract: str) -> tuple[str, list[str]]:
        """Run cases of `contract` until one is killed: (what killed it, else empty; what the others did)."""
        tried: list[str] = []
        for index, info in in_turns(self._cases):
            if contract not in info.contracts:
                continue
            if self._conductor.is_expected_broken(info):
                tried.append(f"  {info.nodeid}: is expected to be broken, so its failure would prove nothing")
                continue
            verdict, _ = self._conductor.run_one(info, channel.Run(index, None), one.id, one.watchdog or 0.0)
            objection = _objection(one, verdict)
            if not objection:
                return f"{info.nodeid} ({verdict.kind} on rank {verdict.first})", tried
            tried.append(f"  {info.nodeid}: {objection}\n{_indented(verdict.text)}".rstrip())
        return "", tried


def in_turns(cases: Sequence[channel.CaseInfo]) -> list[tuple[int, channel.CaseInfo]]:
    """Cases with their numbers: the first of each test function, then the second of each.

    A fault mostly shows in all parametrisations of one function, and which function that is nobody knows before.
    """
    seen: Counter[str] = Counter()
    turns = []
    for index, info in enumerate(cases):
        function = info.nodeid.partition("[")[0]
        turns.append((seen[function], index))
        seen[function] += 1
    return [(index, cases[index]) for _, index in sorted(turns)]


def _objection(one: Fault, verdict: Verdict) -> str:
    """Why this verdict is no kill by `one`; empty when it is."""
    if verdict.kind == "passed":
        reached = f"reached on ranks {sorted(verdict.reached)}" if verdict.reached else "never reached"
        return f"passed although the fault was on ({reached})"
    if verdict.kind not in _KILLS:
        return f"ended as {verdict.kind}, and only {', '.join(sorted(_KILLS))} count"
    if not verdict.reached:
        return "failed, but the fault was never reached: something else is wrong"
    wanted: Iterable[int] = () if isinstance(one.ranks, str) else one.ranks
    if one.ranks == "all":
        wanted = [rank.rank for rank in verdict.ranks]
    silent = sorted(set(wanted) - {rank.rank for rank in verdict.ranks if rank.own_evidence})
    return f"ranks {silent} should have shown it and did not" if silent else ""


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
