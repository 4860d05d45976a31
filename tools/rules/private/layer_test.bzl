"""The macros that BUILD files use: a few attributes, the rest derived from the target's name and package."""

load(":engines.bzl", "compatible_with", "engine_expectations")
load(
    ":naming.bzl",
    "LAYERS",
    "cards_problem",
    "derived_tags",
    "domain_of",
    "full_name",
    "is_domain",
    "jobs_problem",
    "judges_engines",
    "parse_name",
    "srcs_problem",
)
load(":package_sources.bzl", "package_sources")
load(":torchrun_test.bzl", "torchrun_test")

# Bazel's size and timeout by layer; .bazelrc says how many seconds the timeouts are.
_SIZES = {
    "faults": ("large", "moderate"),
    "l0": ("small", "short"),
    "l1": ("medium", "short"),
    "l2": ("medium", "moderate"),
    "l3": ("large", "moderate"),
    "l4": ("enormous", "eternal"),
}

# For target_compatible_with: an engine that is not present makes a target SKIPPED, never silently green.
ENGINE_PRESENT = compatible_with()

def layer_test(
        name,
        srcs,
        cards = None,
        deps = [],
        data = [],
        capabilities = [],
        models = [],
        mechanisms = [],
        engines = None,
        jobs = False,
        size = None,
        timeout = None,
        tags = [],
        **kwargs):
    """Tests of one layer on one number of cards.

    Args:
      name: `l<k>`, `l<k>_<n>card` or `l<k>_<n>card_<suffix>`. Layer and cards are read from it; `l<k>` is short for
        `l<k>_1card`, because `:l<k>` is the suite of all of the package's tests of that layer (see layer_suites).
      srcs: pytest files called `l<k>_<topic>_test.py`.
      cards: ranks, one per card; needs not be given, and must agree with the name.
      deps: further Python libraries that the cases import.
      data: further files that the cases read. The package's contracts.toml is there already.
      capabilities: further capabilities of the engine that the cases use, for example `["clip_grad"]`. A domain's own is
        there already.
      models: reference models that the cases train, for example `["mlp"]`.
      mechanisms: PyTorch mechanisms that the cases lean on; each becomes a tag `mech_<name>`.
      engines: the engines that the cases are for, where they are about one: its shims, for example. Default: every engine.
      jobs: whether the cases start jobs, launches of their own of up to `cards` ranks. One rank runs the cases then; the
        target keeps its cards for their jobs. Not for layer 0.
      size: Bazel's test size; the default depends on the layer.
      timeout: Bazel's test timeout; the default depends on the layer.
      tags: further tags, for example `["nightly"]`. On CPU a test has a loopback of its own and no other network, unless it
        is tagged `requires-network`.
      **kwargs: attributes of every Bazel test: shard_count, flaky, args, ...
    """
    parsed = parse_name(name)
    _check([
        parsed.problem,
        parsed.problem or cards_problem(name, parsed, cards),
        parsed.problem or jobs_problem(name, parsed, jobs),
        parsed.problem or srcs_problem(name, [parsed.kind], srcs),
    ])
    _test(
        name = full_name(name, parsed),
        kind = parsed.kind,
        cards = parsed.cards,
        layer = parsed.kind,
        srcs = srcs,
        deps = deps + _engine_deps(capabilities) + _model_deps(models) + _fault_deps(),
        data = data,
        engines = engines,
        jobs = jobs,
        mechanisms = mechanisms,
        size = size,
        timeout = timeout,
        tags = tags,
        **kwargs
    )

def fault_test(
        name,
        srcs = None,
        cards = None,
        catalogue = None,
        proofs = None,
        deps = [],
        data = [],
        capabilities = [],
        models = [],
        engines = ["torch_native"],
        jobs = False,
        size = None,
        timeout = None,
        tags = [],
        **kwargs):
    """Proves that the cases would notice: each fault of a catalogue must make the named contract fail.

    Tagged `faults` and with no layer, so that `//...:l1` stays the question "does it work"; and `nightly`, since by default
    only some faults of a contract are proven.

    Args:
      name: `faults`, `faults_<n>card` or `faults_<n>card_<suffix>`.
      srcs: the pytest files of the layer tests whose contracts the faults break; any layer.
      cards: ranks, one per card; needs not be given, and must agree with the name.
      catalogue: labels of the fault catalogues, default `//hyper_parallel_tests/faults:<domain>`.
      proofs: in place of srcs and catalogue: label of a catalogue -> the files that must notice its faults. One launch
        loads torch once for all of them.
      deps: further Python libraries that the cases import.
      data: further files that the cases read. The package's contracts.toml is there already.
      capabilities: further capabilities of the engine that the cases use. A domain's own is there already.
      models: reference models that the cases train.
      engines: the engines that the faults fit. Default: PyTorch's own, which the catalogues patch.
      jobs: whether the cases start jobs; see layer_test.
      size: Bazel's test size, default large.
      timeout: Bazel's test timeout, default moderate.
      tags: further tags.
      **kwargs: attributes of every Bazel test: shard_count, flaky, args, ...
    """
    parsed = parse_name(name, ["faults"])
    srcs, catalogue, faults, proofs = _proven(srcs, catalogue, proofs)
    _check([
        parsed.problem,
        parsed.problem or cards_problem(name, parsed, cards),
        parsed.problem or srcs_problem(name, LAYERS, srcs),
    ])
    _test(
        name = name,
        kind = "faults",
        cards = parsed.cards,
        faults = faults,
        proofs = proofs,
        srcs = srcs,
        deps = deps + catalogue + _engine_deps(capabilities) + _model_deps(models),
        data = data,
        engines = engines,
        jobs = jobs,
        mechanisms = [],
        size = size,
        timeout = timeout,
        tags = tags + ["nightly"],
        **kwargs
    )

def _proven(srcs, catalogue, proofs):
    """Files and catalogues of a fault_test, and the attributes of the rule that say which belong together."""
    if proofs:
        if srcs or catalogue:
            fail("\n\n//{}: proofs has its own files and catalogues: give neither srcs nor catalogue.\n".format(native.package_name()))
        files = {file: True for those in proofs.values() for file in those}.keys()
        named = {native.package_relative_label(label).name: those for label, those in proofs.items()}
        return files, proofs.keys(), [], named
    catalogue = catalogue or ["//hyper_parallel_tests/faults:" + domain_of(native.package_name())]
    return srcs or [], catalogue, [native.package_relative_label(label).name for label in catalogue], {}

# buildifier: disable=unnamed-macro
def layer_suites():
    """Declares `:l0` to `:l4`, each all of the package's tests of that layer, and the package's `:sources`.

    A layer may be empty. Order does not matter: a suite looks at the tags of the finished package.
    """
    for layer in LAYERS:
        native.test_suite(
            name = layer,
            tags = [layer],
            visibility = ["//visibility:public"],
        )
    package_sources()

def _test(name, kind, cards, deps, data, engines, mechanisms, size, timeout, tags, **kwargs):
    default_size, default_timeout = _SIZES[kind]
    domain = domain_of(native.package_name())
    torchrun_test(
        name = name,
        by_domain = _by_domain(),
        cards = cards,
        data = data + native.glob(["contracts.toml"], allow_empty = True),
        domain = domain,
        deps = ["//:hyper_parallel_tests_package", "//hyper_parallel_tests/harness"] + deps,
        exec_properties = {"cards": str(cards)},
        size = size or default_size,
        tags = derived_tags(kind, cards, domain, mechanisms) + tags,
        target_compatible_with = compatible_with(engines),
        timeout = timeout or (default_timeout if not size else None),
        **kwargs
    )

def _engine_deps(capabilities):
    own = [domain_of(native.package_name())] if is_domain(native.package_name()) else []
    labels = ["//hyper_parallel_tests/engines:" + capability for capability in own + capabilities]
    return labels + (["//hyper_parallel_tests/engines:load"] if labels else [])

def _by_domain():
    """The tolerances and the known defects of one domain."""
    if not judges_engines(native.package_name()):
        return []
    return ["//hyper_parallel_tests/harness/judging:ledger"] + engine_expectations()

def _model_deps(models):
    return ["//hyper_parallel_tests/models:" + model for model in models]

def _fault_deps():
    """With --//tools/rules:fault=ID the launcher must find that fault; without, no test depends on the catalogue."""
    if not judges_engines(native.package_name()):
        return []
    return select({
        "//tools/rules:no_fault": [],
        "//conditions:default": ["//hyper_parallel_tests/faults:all_catalogues"],
    })

def _check(problems):
    for problem in problems:
        if problem:
            fail("\n\n//{}: {}.\n".format(native.package_name(), problem))
