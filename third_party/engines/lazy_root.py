"""Stands for an engine's own `__init__.py` in tests that see a part of the engine only.

That file imports all of the engine, so a change anywhere would re-run every test. Here each of its names is imported on
first use. Where all that the engine's own file imports is at hand, that file is run instead, word for word.
"""

import importlib
import json
import pathlib

_FOLDER = pathlib.Path(__file__).parent
_ORIGINAL = _FOLDER / "__init__.original"
_EXPORTS = json.loads((_FOLDER / "__init__.exports").read_text())


def _at_hand(module):
    outer, _, inner = module.partition(".")
    place = _FOLDER.joinpath(*inner.split("."))
    return outer != __name__ or (place / "__init__.py").is_file() or place.with_suffix(".py").is_file()


def __getattr__(name):
    if name in _EXPORTS:
        module, attribute = _EXPORTS[name]
        if not _at_hand(module):
            raise ImportError(
                f"{__name__}.{name} lies in {module}, which this test does not depend on: add its library"
            )
        value = getattr(importlib.import_module(module), attribute)
        globals()[name] = value
        return value
    if not name.startswith("_") and (_FOLDER / name / "__init__.py").is_file():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if all(_at_hand(module) for module, _ in _EXPORTS.values()):
    exec(compile(_ORIGINAL.read_bytes(), _ORIGINAL, "exec"), globals())
