"""The engines that have an adapter in hyper_parallel_tests/engines, and what their tests need."""

def _engine(capabilities = None, environment = {}, needs = []):
    """What the rules have to know of an engine.

    Args:
      capabilities: the capabilities of the port that its folder has a library for. None: all. What an engine lacks ends as
        `not-offered`.
      environment: variables that it reads when it is imported, so that nobody's shell decides.
      needs: constraints that say that it is at hand: an external engine's sources (third_party/engines).
    """
    return struct(capabilities = capabilities, environment = environment, needs = needs)

# An engine's name stands here and nowhere else.
_ENGINES = {
    "hyper_parallel": _engine(
        environment = {"HYPER_PARALLEL_PLATFORM": "torch"},
        needs = ["@hyper_parallel//:at_hand"],
    ),
    "torch_native": _engine(),
}

ENGINES = sorted(_ENGINES)

ENGINE_ENVIRONMENT = {name: engine.environment for name, engine in _ENGINES.items()}

def engine_libraries(capability):
    """For deps: a capability as the engine under test has it.

    Args:
      capability: its name.

    Returns:
      A select over --//tools/rules:engine. An engine without the capability gives its `package` alone.
    """
    return select(
        {
            "//tools/rules:engine_" + name: ["//hyper_parallel_tests/engines/{}:{}".format(
                name,
                capability if engine.capabilities == None or capability in engine.capabilities else "package",
            )]
            for name, engine in _ENGINES.items()
        },
        no_match_error = "no adapter for this engine: --//tools/rules:engine must be one of " + ", ".join(ENGINES),
    )

def engine_expectations():
    """For by_domain: what the engine under test is known to do wrong, a file a domain.

    Returns:
      A select over --//tools/rules:engine.
    """
    return select({
        "//tools/rules:engine_" + name: ["//hyper_parallel_tests/engines/{}:expectations".format(name)]
        for name in ENGINES
    })

def compatible_with(engines = None):
    """For target_compatible_with: SKIPPED, never silently green, where the engine under test cannot be had.

    Args:
      engines: the engines that the target is for. None: all with an adapter.

    Returns:
      A select over --//tools/rules:engine.
    """
    unknown = [engine for engine in engines or [] if engine not in _ENGINES]
    if unknown:
        fail("no adapter for engine {}: expected some of {}".format(", ".join(unknown), ", ".join(ENGINES)))
    return select(
        {"//tools/rules:engine_" + engine: _ENGINES[engine].needs for engine in engines or ENGINES} |
        {"//conditions:default": ["//tools/rules:not_for_this_engine" if engines else "//tools/rules:engine_has_no_adapter"]},
    )
