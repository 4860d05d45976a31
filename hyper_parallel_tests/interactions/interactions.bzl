"""The targets of layer 3, from their registry."""

load("//tools/rules:defs.bzl", "fault_test", "layer_suites", "layer_test")

def _toml(value):
    # Texts, numbers and lists of them are written in TOML as in JSON.
    if type(value) == "dict":
        return "{ %s }" % ", ".join(["{} = {}".format(key, json.encode(one)) for key, one in value.items()])
    return json.encode(value)

def _entry_impl(ctx):
    file = ctx.actions.declare_file(ctx.label.name + ".toml")
    ctx.actions.write(file, ctx.attr.text)
    place = ctx.label.package + "/registry.toml"
    return [DefaultInfo(runfiles = ctx.runfiles(symlinks = {place: file}))]

# A test sees its own entry in the place of the registry, so that a further entry re-runs nothing.
_entry = rule(
    implementation = _entry_impl,
    attrs = {"text": attr.string(doc = "The entries that a test sees, as TOML.", mandatory = True)},
)

def _text(scenarios):
    return "\n".join([
        "\n".join(["[[scenario]]"] + ["{} = {}".format(key, _toml(value)) for key, value in one.items()]) + "\n"
        for one in scenarios
    ])

def _seen(name, scenarios):
    _entry(name = name, testonly = True, text = _text(scenarios))
    return [":" + name]

def _file(scenario):
    return "l3_{}_test.py".format(scenario["name"])

def _all_of(scenarios, key):
    return {one: True for scenario in scenarios for one in scenario[key]}.keys()

def _proofs(scenarios):
    files = {}
    for scenario in scenarios:
        files.setdefault("//hyper_parallel_tests/faults:" + scenario["faults"], []).append(_file(scenario))
    return files

# buildifier: disable=unnamed-macro
def interaction_tests(scenarios):
    """Declares, for each scenario, `l3_<cards>card_<name>`, and for each number of cards a fault test.

    Args:
      scenarios: the entries of registry.toml.
    """
    for scenario in scenarios:
        layer_test(
            name = "l3_{cards}card_{name}".format(**scenario),
            srcs = [_file(scenario)],
            capabilities = scenario["capabilities"],
            data = _seen("_entry_" + scenario["name"], [scenario]),
            mechanisms = scenario["mechanisms"],
            models = scenario["models"],
            tags = scenario["capabilities"],
            deps = [":scenario"],
        )
    alike = {}
    for scenario in scenarios:
        alike.setdefault(scenario["cards"], []).append(scenario)
    for cards, group in alike.items():
        name = "faults_{}card".format(cards)
        fault_test(
            name = name,
            timeout = "long",
            capabilities = _all_of(group, "capabilities"),
            data = _seen("_entries_" + name, group),
            models = _all_of(group, "models"),
            proofs = _proofs(group),
            deps = [":scenario"],
        )
    layer_suites()
