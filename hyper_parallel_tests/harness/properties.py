"""Property tests: the same examples in each run, nothing kept on disk."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

__all__ = ["PROFILE"]

# A counter-example that is found becomes an `@example`.
PROFILE = settings(
    database=None,
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _read_no_sources() -> providers.Constants:
    return providers._local_constants


# Hypothesis reads the source of every loaded module outside site-packages for numbers to try. Where the environment is
# elsewhere, as Bazel's is, that is all of torch: minutes, files on disk, and examples that depend on what is loaded.
if not hasattr(providers, "_get_local_constants"):
    raise ImportError("this version of hypothesis finds its constants elsewhere: adapt _read_no_sources to it")
providers._get_local_constants = _read_no_sources
