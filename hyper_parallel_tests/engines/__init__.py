"""The systems under test, all behind one port."""

from hyper_parallel_tests.engines.load import Engine, EngineUnsupported, load

__all__ = ["Engine", "EngineUnsupported", "load"]
