"""Run a program through the launcher as a person or Bazel would, and read what it leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import hyper_parallel_tests
from hyper_parallel_tests.harness import processes

ROOT = Path(hyper_parallel_tests.__file__).parents[1]
PROGRAMS = Path(__file__).parent.relative_to(ROOT) / "programs"

# Bounds of waits on conditions; a healthy machine is far below them.
LIMIT_S = 240.0
_GONE_S = 30.0
_LOOK_AGAIN_S = 0.05
_SAMPLE_S = 1.0
_SHARED_MEMORY = Path("/dev/shm")

_MARK = "HYPER_PARALLEL_TESTS_LAUNCHED"
# What the launch around this test was told is not for the launch inside it.
_OUTER = ("TEST_", "TESTBRIDGE_", "XML_OUTPUT_FILE", "TORCHELASTIC_", "PYTEST_", "TORCH_FR_")
_OUTER_RANK = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
# It would hide what a rank forgets to flush.
_CONVENIENCE = {"PYTHONUNBUFFERED"}


@dataclass(frozen=True)
class Case:
    """One test case of the XML report. `first_rank` is None where the report names none."""

    name: str
    outcome: str
    verdict: str
    first_rank: int | None
    message: str
    text: str = field(repr=False)
    seconds: float
    properties: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class Run:
    """A launch that has ended, with nothing left running.

    Attributes:
        code: the launcher's exit code, negative for a signal.
        terminal: its standard output and error.
        cases: by name, in the order of the report; empty where there is no report.
        outputs: the folder that it was given for kept outputs.
        seconds_after_signal: from the last signal that it was sent to the end, 0 without one.
    """

    code: int
    terminal: str = field(repr=False)
    cases: dict[str, Case] = field(repr=False)
    outputs: Path
    seconds_after_signal: float

    def __getitem__(self, name: str) -> Case:
        assert name in self.cases, f"no case {name} in the report, only {list(self.cases)}\n{self.terminal}"
        # Shown by the launch around this test if what follows fails.
        print(self.cases[name].text)
        return self.cases[name]

    def neighbours(self) -> dict[str, str]:
        """Name -> outcome of the healthy cases between the broken ones."""
        return {name: case.outcome for name, case in self.cases.items() if name.startswith("test_neighbour")}


class Launch:
    """A running launch. Its processes are known by a mark in their environment, whoever their parents are."""

    def __init__(
        self, folder: Path, words: Sequence[str], environment: Mapping[str, str], terminal: int | None = None
    ) -> None:
        """Start; `terminal` is a descriptor for input and output in place of none and a file."""
        self._mark = uuid.uuid4().hex
        self._folder = folder
        self.outputs = folder / "outputs"
        self.temporary = folder / "tmp"
        for each in (self.outputs, self.temporary):
            each.mkdir(parents=True)
        self._segments: set[str] = set()
        self._signalled = 0.0
        with (folder / "terminal").open("wb") as file, _interruptible():
            self._process = subprocess.Popen(
                [*command(), *words],
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=file if terminal is None else terminal,
                stderr=subprocess.STDOUT,
                env=self._environment() | dict(environment),
                cwd=ROOT,
                process_group=0,
            )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever has failed."""
        processes.kill(list(self.running()))
        self._process.wait()
        for folder in self._socket_folders():
            shutil.rmtree(folder)

    def _environment(self) -> dict[str, str]:
        own = {
            "TMPDIR": str(self.temporary),
            "TEST_TMPDIR": str(self.temporary),
            "TEST_UNDECLARED_OUTPUTS_DIR": str(self.outputs),
            "XML_OUTPUT_FILE": str(self._folder / "test.xml"),
            _MARK: self._mark,
        }
        return inherited() | own

    @property
    def terminal(self) -> str:
        return (self._folder / "terminal").read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def running(self) -> dict[int, str]:
        """Process id -> command line of everything that this launch has started and that still runs."""
        return {pid: processes.command_of(pid) for pid in _marked(f"{_MARK}={self._mark}".encode())}

    def wait_for_output(self, rank: int, text: str) -> None:
        """Wait until a rank has written `text`: it is in the middle of the case that does."""
        log = self.outputs / f"rank{rank}.log"

        def written() -> bool:
            assert not self.ended, f"it has ended without {text!r} in {log}\n{self.terminal}"
            return log.exists() and text in log.read_text(errors="replace")

        wait_until(written, f"{text!r} in {log}")

    def signal(self, number: int) -> None:
        """Send a signal to the launcher alone."""
        self._signalled = time.monotonic()
        self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the launcher's process group, as a terminal does."""
        self._signalled = time.monotonic()
        os.killpg(self._process.pid, number)

    def end(self) -> Run:
        """Wait for the end, check that nothing is left, and read the reports.

        Raises:
            AssertionError: it did not end, or left a process, shared memory or a temporary file behind.
        """
        try:
            self._wait()
            ended = time.monotonic()
            wait_until(lambda: not self.running(), "the end of all processes of the launch", _GONE_S)
            wait_until(lambda: not self._left_segments(), "the end of its shared memory", _GONE_S)
        except AssertionError:
            print(self.terminal, *self.running().items(), *self._left_segments(), sep="\n")
            raise
        code = self._process.returncode
        if code != -signal.SIGKILL:
            left = [*map(str, self.temporary.rglob("*")), *map(str, self._socket_folders())]
            assert not left, f"left in temporary folders: {left}"
        return Run(
            code=code,
            terminal=self.terminal,
            cases=_cases(self._folder / "test.xml"),
            outputs=self.outputs,
            seconds_after_signal=ended - self._signalled if self._signalled else 0.0,
        )

    def _wait(self) -> None:
        """Wait for the end of the launcher, noting what shared memory the launch has in use meanwhile."""
        end = time.monotonic() + LIMIT_S
        while True:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SAMPLE_S)
                return
            assert time.monotonic() < end, f"the launch did not end within {LIMIT_S:.0f} s"
            self._segments |= _segments_of(self.running())

    def _socket_folders(self) -> list[Path]:
        """The folders of this launch outside of its temporary folder: sockets need short paths."""
        found = []
        for link in Path("/tmp").glob("hyper_parallel_tests-*/tmp"):
            # Other launches take theirs away meanwhile.
            with suppress(OSError):
                if link.readlink().is_relative_to(self.temporary):
                    found.append(link.parent)
        return found

    def _left_segments(self) -> list[str]:
        """Shared memory that this launch was seen to use and that is still there; others have their own."""
        return sorted(name for name in self._segments if (_SHARED_MEMORY / name).exists())


def launch(folder: Path, program: str, *words: str, cards: int = 1, **environment: str) -> Run:
    """Launch `programs/<program>.py` on `cards` ranks and wait for the end."""
    with start(folder, program, *words, cards=cards, **environment) as running:
        return running.end()


def start(
    folder: Path, program: str, *words: str, cards: int = 1, terminal: int | None = None, **environment: str
) -> Launch:
    """Launch `programs/<program>.py` on `cards` ranks."""
    file = str(PROGRAMS / f"{program}.py")
    return Launch(folder, [f"--cards={cards}", file, *words], environment, terminal)


def command() -> list[str]:
    """The launcher's command line without its arguments, by the interpreter and flags of this process."""
    flags = subprocess._args_from_interpreter_flags()
    return [sys.executable, *flags, "-m", "hyper_parallel_tests.harness.launch"]


def inherited() -> dict[str, str]:
    """This process' environment without what was meant for it alone, and with its search path."""
    own = {name for name in os.environ if name.startswith(_OUTER)} | _OUTER_RANK | _CONVENIENCE
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def wait_until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait for a condition; AssertionError after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited {limit_s:.0f} s for {what}"
        time.sleep(_LOOK_AGAIN_S)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Children start with SIGINT as a shell gives it: ranks ignore it, and children would inherit that."""
    kept = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)


def _marked(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0") and processes.is_running(int(entry.name)):
            yield int(entry.name)


def _segments_of(pids: Iterable[int]) -> set[str]:
    """Names of the shared memory that processes have mapped and that still has a name."""
    found: set[str] = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        mapped = [line.partition(f"{_SHARED_MEMORY}/")[2] for line in lines if f"{_SHARED_MEMORY}/" in line]
        found.update(name for name in mapped if not name.endswith(" (deleted)"))
    return found


def _cases(xml: Path) -> dict[str, Case]:
    if not xml.exists():
        return {}
    return {case.name: case for case in map(_case, ElementTree.parse(xml).iter("testcase"))}


def _case(element: ElementTree.Element) -> Case:
    properties = {one.get("name", ""): one.get("value", "") for one in element.iter("property")}
    failure, skipped = element.find("failure"), element.find("skipped")
    result = failure if failure is not None else skipped
    outcome = "failed" if failure is not None else "skipped" if skipped is not None else "passed"
    first = properties.get("first_rank")
    return Case(
        name=element.get("name", ""),
        outcome=outcome,
        verdict=properties.get("verdict", ""),
        first_rank=None if first is None else int(first),
        message="" if result is None else result.get("message", ""),
        text="" if result is None else result.text or "",
        seconds=float(element.get("time", 0)),
        properties=properties,
    )
