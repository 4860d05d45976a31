"""What one launch was asked to do: the command line joined with Bazel's test environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from absl import flags

_FLAGS = flags.FlagValues()

# Longer runs than the default one, which is for every change.
SIZES = ("nightly", "weekly")

flags.DEFINE_integer("cards", 1, "ranks to start, one per card", lower_bound=1, flag_values=_FLAGS)
flags.DEFINE_bool(
    "jobs",
    False,
    "one rank runs the cases, and they start jobs of up to --cards ranks",
    flag_values=_FLAGS,
)
flags.DEFINE_enum("device", "cpu", ["cpu", "cuda", "npu"], "where the ranks compute", flag_values=_FLAGS)
flags.DEFINE_string("engine", "torch_native", "the system under test", flag_values=_FLAGS)
flags.DEFINE_enum(
    "layer",
    "",
    ["", "l0", "l1", "l2", "l3", "l4"],
    "the layer that the files belong to (l0 runs without a process group)",
    flag_values=_FLAGS,
)
flags.DEFINE_string("fault", "", "run with this one fault applied on every rank", flag_values=_FLAGS)
flags.DEFINE_list("faults", [], "prove that the named fault catalogues are caught by the files", flag_values=_FLAGS)
flags.DEFINE_multi_string(
    "proof",
    [],
    "CATALOGUE,...:FILE,...: the same for these files alone, several times in one launch",
    flag_values=_FLAGS,
)
flags.DEFINE_integer(
    "faults_per_contract",
    None,
    "prove so many faults of a contract in the default size, the first ones of each proof (default: all)",
    lower_bound=1,
    flag_values=_FLAGS,
)
flags.DEFINE_float(
    "watchdog",
    0.0,
    "seconds that a case may take which sets no limit of its own (default: 60)",
    lower_bound=0.0,
    flag_values=_FLAGS,
)
flags.DEFINE_enum(
    "size",
    "default",
    ["default", *SIZES],
    "how long the cases train that carry the mark steps; all faults are proven unless it is the default",
    flag_values=_FLAGS,
)
flags.DEFINE_integer(
    "steps", None, "training steps of those cases, in place of what their size says", lower_bound=1, flag_values=_FLAGS
)
flags.DEFINE_bool(
    "survey",
    False,
    "exit with 0 whatever the cases did, for those who read the XML: a result to keep, in Bazel's cache too",
    flag_values=_FLAGS,
)
flags.DEFINE_enum(
    "baselines",
    "",
    ["", "in_place", "apart"],
    "where baselines run: in the ranks or in clean processes (default: what the engine's package says)",
    flag_values=_FLAGS,
)
flags.DEFINE_float("startup", 120.0, "seconds the ranks may take to come up", lower_bound=1.0, flag_values=_FLAGS)
flags.DEFINE_integer("pdb_rank", -1, "drop this rank into pdb on a failure; no watchdog then", flag_values=_FLAGS)
flags.DEFINE_enum(
    "start_method", "", ["", "forkserver", "spawn"], "how ranks start (default by device)", flag_values=_FLAGS
)


class UsageError(Exception):
    """The launch was asked for something that it cannot do; the text says what to change."""


@dataclass(frozen=True)
class Options:
    """One launch.

    Times are seconds, paths absolute; `pytest_args` reach the ranks' sessions and the conductor's unchanged. `proofs`
    are pairs of catalogues and the files that must notice their faults; `faults` and `files` then have those of all.
    """

    files: tuple[str, ...]
    cards: int = 1
    jobs: bool = False
    device: str = "cpu"
    engine: str = "torch_native"
    layer: str = ""
    fault: str = ""
    faults: tuple[str, ...] = ()
    proofs: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    faults_per_contract: int | None = None
    watchdog: float | None = None
    size: str = "default"
    steps: int | None = None
    survey: bool = False
    baselines: str = ""
    startup: float = 120.0
    pdb_rank: int | None = None
    start_method: str = "forkserver"
    pytest_args: tuple[str, ...] = ()
    test_filter: str = ""
    shard: int = 0
    shards: int = 1
    shard_status: Path | None = None
    xml: Path | None = None
    outputs: Path | None = None
    tmpdir: Path | None = None
    target_timeout: float | None = None
    premature_exit: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many ranks run the cases: one a card, or the one that starts jobs on the cards."""
        return 1 if self.jobs else self.cards

    @property
    def parts(self) -> tuple[Options, ...]:
        """What has ranks of its own: each proof with its files, or the launch as it is."""
        if not self.proofs:
            return (self,)
        return tuple(
            replace(self, faults=faults, files=files, layer=self.layer or _layer_of(files), proofs=())
            for faults, files in self.proofs
        )

    @property
    def queue_limit(self) -> float:
        """Seconds to wait for cards that other launches hold: half of the target's time."""
        return (self.target_timeout or 7200.0) / 2

    @property
    def root(self) -> Path:
        """What the names of cases are relative to: the working directory, or the files' own if they lie elsewhere."""
        folders = [Path(os.path.abspath(name.partition("::")[0])).parent for name in self.files]
        if all(folder.is_relative_to(Path.cwd()) for folder in folders):
            return Path.cwd()
        return Path(os.path.commonpath(folders))

    @property
    def process_group(self) -> bool:
        """Whether the ranks get a default process group: layer 0 is pure logic and has none."""
        return self.layer != "l0"


def parse(argv: Sequence[str], environ: dict[str, str] | None = None) -> Options:
    """Read a command line (without the program's name) and Bazel's variables.

    Flags of the launcher may stand anywhere; words that are existing paths, or `path::case`, are files; every other
    word goes to pytest (`-k EXPR`, `-v`, `--durations=5`, ...).

    Raises:
        UsageError: a flag's value is wrong, a file does not exist, no file was given.
    """
    environ = dict(os.environ if environ is None else environ)
    _FLAGS.unparse_flags()
    _FLAGS.set_gnu_getopt(True)
    for name in _FLAGS:
        _FLAGS[name].unparse()
    try:
        rest = _FLAGS(["launch", *map(_underscored, argv)], known_only=True)[1:]
    except flags.Error as error:
        raise UsageError(str(error)) from None
    files, pytest_args = _split(rest)
    proofs = tuple(map(_proof, _FLAGS.proof))
    if proofs and (files or _FLAGS.faults):
        raise UsageError("--proof has its own files and catalogues: give neither --faults nor further files")
    files = files or tuple(dict.fromkeys(file for _, those in proofs for file in those))
    if not files:
        raise UsageError("no test file given: name at least one PATH or PATH::case")
    if _FLAGS.jobs and _FLAGS.pdb_rank > 0:
        raise UsageError(f"--pdb_rank={_FLAGS.pdb_rank} does not exist: with --jobs only rank 0 runs the cases")
    if _FLAGS.pdb_rank >= _FLAGS.cards:
        raise UsageError(
            f"--pdb_rank={_FLAGS.pdb_rank} does not exist: with --cards={_FLAGS.cards} ranks are 0..{_FLAGS.cards - 1}"
        )
    faults = tuple(_FLAGS.faults) or tuple(dict.fromkeys(name for names, _ in proofs for name in names))
    if _FLAGS.fault and faults:
        raise UsageError("--fault runs cases under one fault, --faults proves a catalogue: give one of them")
    layer = _FLAGS.layer or _layer_of(files)
    if _FLAGS.jobs and layer == "l0":
        raise UsageError("--jobs starts ranks, and layer 0 runs in one process: such cases belong to layer 1 or above")
    return Options(
        files=files,
        cards=_FLAGS.cards,
        jobs=_FLAGS.jobs,
        device=_FLAGS.device,
        engine=_FLAGS.engine,
        layer=layer,
        fault=_FLAGS.fault,
        faults=faults,
        proofs=proofs,
        faults_per_contract=_FLAGS.faults_per_contract,
        watchdog=_FLAGS.watchdog or None,
        size=_FLAGS.size,
        steps=_FLAGS.steps,
        survey=_FLAGS.survey,
        baselines=_FLAGS.baselines,
        startup=_FLAGS.startup,
        pdb_rank=None if _FLAGS.pdb_rank < 0 else _FLAGS.pdb_rank,
        start_method=_FLAGS.start_method or ("spawn" if _FLAGS.device == "npu" else "forkserver"),
        pytest_args=pytest_args,
        **_bazel(environ),
    )


def _underscored(word: str) -> str:
    """Let `--pdb-rank=0` mean `--pdb_rank=0`, as people type it."""
    name, equals, value = word.partition("=")
    plain = name[2:].replace("-", "_") if name.startswith("--") else ""
    return f"--{plain}{equals}{value}" if plain in _FLAGS else word


def _split(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Part files from pytest's own words; an option's separate value must not be taken for a file."""
    takes_value = {"-k", "-m", "-o", "-p", "-W", "-r", "--tb", "--durations", "--maxfail"}
    files: list[str] = []
    other: list[str] = []
    previous = ""
    for word in words:
        if previous in takes_value or word.startswith("-"):
            other.append(word)
        elif Path(word.partition("::")[0]).exists():
            files.append(word)
        else:
            raise UsageError(f"{word.partition('::')[0]}: no such file (paths are relative to {Path.cwd()})")
        previous = word
    return tuple(files), tuple(other)


def _proof(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Catalogues and files of one `--proof`."""
    names, colon, paths = text.partition(":")
    files, other = _split(paths.split(",")) if paths else ((), ())
    if not names or not colon or not files or other:
        raise UsageError(f"--proof={text}: expected CATALOGUE,...:FILE,...")
    return tuple(names.split(",")), files


def _layer_of(files: Sequence[str]) -> str:
    """The layer that the file names carry, empty where they carry none or differ."""
    layers = {Path(name.partition("::")[0]).name.partition("_")[0] for name in files}
    only = layers.pop() if len(layers) == 1 else ""
    return only if only in {"l0", "l1", "l2", "l3", "l4"} else ""


def _bazel(environ: dict[str, str]) -> dict[str, object]:
    """The test encyclopedia's variables, as Options fields."""

    def path(name: str) -> Path | None:
        return Path(environ[name]).absolute() if environ.get(name) else None

    timeout = environ.get("TEST_TIMEOUT")
    return {
        "test_filter": environ.get("TESTBRIDGE_TEST_ONLY", ""),
        "shard": int(environ.get("TEST_SHARD_INDEX") or 0),
        "shards": int(environ.get("TEST_TOTAL_SHARDS") or 1),
        "shard_status": path("TEST_SHARD_STATUS_FILE"),
        "xml": path("XML_OUTPUT_FILE"),
        "outputs": path("TEST_UNDECLARED_OUTPUTS_DIR"),
        "tmpdir": path("TEST_TMPDIR"),
        "target_timeout": float(timeout) if timeout else None,
        "premature_exit": path("TEST_PREMATURE_EXIT_FILE"),
        "environment": environ,
    }
