"""What is imported where: in the fork server once for all ranks, or in each rank."""

from __future__ import annotations

import importlib.util
import pkgutil
from pathlib import Path

from hyper_parallel_tests.harness.expectations import engine_folder
from hyper_parallel_tests.harness.options import Options

# What torch itself imports on the first use of an optimizer, a checkpoint or FSDP: a second of each rank's time.
_LATE = "torch._dynamo"
# What engines import of torch; it takes ten times as long as an engine itself.
TORCH_OF_ENGINES = (
    _LATE,
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
)
# What most cases ask for; it knows no engine, and calls torch by the names that a fault replaces.
_JUDGING = tuple(f"hyper_parallel_tests.harness.judging.{name}" for name in ("baseline", "determinism", "trace"))


def needs_siblings(options: Options) -> bool:
    """Whether baselines must not run in the ranks, since the engine changes torch there."""
    if options.baselines:
        return options.baselines == "apart"
    folder = engine_folder(options.engine)
    return folder is not None and _patches_torch(folder)


def _patches_torch(folder: Path) -> bool:
    """What an engine's package says; true where it says nothing. Imports neither its capabilities nor the port."""
    spec = importlib.util.spec_from_file_location(f"_{folder.name}_declares", folder / "__init__.py")
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return getattr(package, "PATCHES_TORCH", True)


def for_fork_server(options: Options) -> list[str]:
    """torch, and the engine's capabilities that this target can see unless each rank is to import them itself.

    A target of layer 0 without an engine does not pay for torch.
    """
    torch = ["torch", "torch.distributed", "hyper_parallel_tests.harness.judging.flight"]
    if options.ranks > 1:
        torch.append("torch.distributed.elastic.multiprocessing")
    if options.process_group:
        torch.append("hyper_parallel_tests.harness.world")
    if options.jobs:
        torch.append("hyper_parallel_tests.harness.judging.clean")
    if engine_folder(options.engine) is None:
        return torch if options.ranks > 1 or options.process_group else []
    faults = [f"hyper_parallel_tests.faults.{name}" for name in options.faults if "." not in name]
    engine = TORCH_OF_ENGINES if needs_siblings(options) else [_LATE, *_capabilities(options)]
    return [*torch, *_JUDGING, *faults, *engine]


def for_ranks(options: Options) -> tuple[str, ...] | None:
    """What a rank imports once it has forked its clean sibling; None where it needs no sibling."""
    return tuple(_capabilities(options)) if needs_siblings(options) else None


def roots(options: Options) -> list[str]:
    """Where the names begin by which pytest imports test files: above their packages, or at its root directory."""
    found = [options.root]
    for name in options.files:
        folder = Path(name.partition("::")[0]).absolute().parent
        while (folder / "__init__.py").exists():
            folder = folder.parent
        found.append(folder)
    return [str(folder) for folder in dict.fromkeys(found)]


def _capabilities(options: Options) -> list[str]:
    folder = engine_folder(options.engine)
    if folder is None:
        return []
    names = [module.name for module in pkgutil.iter_modules([str(folder)]) if not module.name.startswith("_")]
    return [f"hyper_parallel_tests.engines.{options.engine}.{name}" for name in names]
