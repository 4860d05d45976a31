"""The engines that have an adapter in hyper_parallel_tests/engines, and what their tests need."""

# What must be there besides the adapter: an external engine's sources (third_party/engines).
_AT_HAND = {
    "hyper_parallel": ["@hyper_parallel//:at_hand"],
    "torch_native": [],
}

# Variables that an engine reads when it is imported, so that nobody's shell decides.
ENGINE_ENVIRONMENT = {
    "hyper_parallel": {"HYPER_PARALLEL_PLATFORM": "torch"},
}

def compatible_with(engines = None):
    """For target_compatible_with: SKIPPED, never silently green, where the engine under test cannot be had.

    Args:
      engines: the engines that the target is for. None: all with an adapter.

    Returns:
      A select over --//tools/rules:engine.
    """
    unknown = [engine for engine in engines or [] if engine not in _AT_HAND]
    if unknown:
        fail("no adapter for engine {}: expected some of {}".format(", ".join(unknown), ", ".join(_AT_HAND)))
    return select(
        {"//tools/rules:engine_" + engine: _AT_HAND[engine] for engine in engines or _AT_HAND} |
        {"//conditions:default": ["//tools/rules:not_for_this_engine" if engines else "//tools/rules:engine_has_no_adapter"]},
    )
