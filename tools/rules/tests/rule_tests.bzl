"""Tests of what the macros declare and of what the rule makes of it."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts", "unittest")

_MOST_RUNFILES = 99
_FAULTS = ["--faults_per_contract=3"]

def _arguments(env):
    """The launcher's arguments as the stub has them."""
    stubs = [action for action in analysistest.target_actions(env) if action.mnemonic == "TemplateExpand"]
    return stubs[0].substitutions["%{arguments}"].replace("'", "").split(" ")

def _layer_arguments_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(
        env,
        ["--cards=4", "--device=cpu", "--engine=torch_native", "--layer=l2", "tools/rules/tests/l2_sample_test.py"],
        _arguments(env),
    )
    return analysistest.end(env)

def _fault_setting_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.true(env, "--fault=some-fault" in _arguments(env), str(_arguments(env)))
    return analysistest.end(env)

def _fault_arguments_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(
        env,
        ["--cards=2", "--device=cpu", "--engine=torch_native"] + _FAULTS + ["--faults=catalogue", "tools/rules/tests/l1_ranks_test.py"],
        _arguments(env),
    )
    return analysistest.end(env)

def _fault_proofs_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(
        env,
        ["--cards=2", "--device=cpu", "--engine=torch_native"] + _FAULTS + ["--proof=catalogue:tools/rules/tests/l1_ranks_test.py"],
        _arguments(env),
    )
    return analysistest.end(env)

def _jobs_arguments_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, ["--cards=4", "--device=cpu", "--engine=torch_native", "--jobs", "--layer=l2"], _arguments(env)[:5])
    return analysistest.end(env)

def _fault_jobs_arguments_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(
        env,
        ["--cards=2", "--device=cpu", "--engine=torch_native", "--jobs"] + _FAULTS + ["--faults=catalogue"],
        _arguments(env)[:6],
    )
    return analysistest.end(env)

def _runfiles_test_impl(ctx):
    env = analysistest.begin(ctx)
    files = analysistest.target_under_test(env)[DefaultInfo].default_runfiles.files.to_list()
    names = [file.basename for file in files]
    asserts.true(env, len(files) <= _MOST_RUNFILES, "{} runfiles, expected at most {}".format(len(files), _MOST_RUNFILES))
    packages = [file.short_path for file in files if file.short_path.startswith("../python_")]
    asserts.true(env, len(packages) <= 2, "a fingerprint and at most one directory, not {}".format(packages))
    for name in ["catalogue.py", "fingerprint.json", "l2_sample_test.py", "launch.py", "samples.bzl"]:
        asserts.true(env, name in names, "{} is missing".format(name))
    return analysistest.end(env)

def _run_environment_test_impl(ctx):
    env = analysistest.begin(ctx)
    info = analysistest.target_under_test(env)[RunEnvironmentInfo]
    asserts.equals(env, [], info.inherited_environment)
    asserts.equals(env, "1", info.environment["OMP_NUM_THREADS"])
    asserts.equals(env, "0", info.environment["PYTHONHASHSEED"])
    asserts.equals(env, "0", info.environment["TORCH_DEVICE_BACKEND_AUTOLOAD"])
    asserts.equals(env, "lo", info.environment["GLOO_SOCKET_IFNAME"])
    return analysistest.end(env)

def _engine_test_impl(ctx):
    env = analysistest.begin(ctx)
    info = analysistest.target_under_test(env)[RunEnvironmentInfo]
    stubs = [action for action in analysistest.target_actions(env) if action.mnemonic == "TemplateExpand"]
    asserts.true(env, "--engine=hyper_parallel" in _arguments(env), str(_arguments(env)))
    asserts.equals(env, "torch", info.environment["HYPER_PARALLEL_PLATFORM"])
    asserts.equals(env, "'made_up_engine'", stubs[0].substitutions["%{directories}"].split(" ")[0])
    return analysistest.end(env)

def _domain_files_test_impl(ctx):
    env = analysistest.begin(ctx)
    files = analysistest.target_under_test(env)[DefaultInfo].default_runfiles.files.to_list()
    names = [file.basename for file in files if file.extension == "toml"]
    asserts.equals(env, ["rng.toml"], names, "its own domain's expectations and no other's")
    return analysistest.end(env)

def _no_environment_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.expect_failure(env, "No Python environment, for this reason.")
    return analysistest.end(env)

_layer_arguments_test = analysistest.make(
    _layer_arguments_test_impl,
    config_settings = {str(Label("//tools/rules:engine")): "torch_native"},
)
_fault_setting_test = analysistest.make(
    _fault_setting_test_impl,
    config_settings = {str(Label("//tools/rules:fault")): "some-fault"},
)
_fault_arguments_test = analysistest.make(
    _fault_arguments_test_impl,
    config_settings = {str(Label("//tools/rules:engine")): "torch_native"},
)
_fault_proofs_test = analysistest.make(
    _fault_proofs_test_impl,
    config_settings = {str(Label("//tools/rules:engine")): "torch_native"},
)
_jobs_arguments_test = analysistest.make(
    _jobs_arguments_test_impl,
    config_settings = {str(Label("//tools/rules:engine")): "torch_native"},
)
_fault_jobs_arguments_test = analysistest.make(
    _fault_jobs_arguments_test_impl,
    config_settings = {str(Label("//tools/rules:engine")): "torch_native"},
)
_domain_files_test = analysistest.make(_domain_files_test_impl)
_engine_test = analysistest.make(
    _engine_test_impl,
    config_settings = {str(Label("//tools/rules:engine")): "hyper_parallel"},
)
_runfiles_test = analysistest.make(_runfiles_test_impl)
_run_environment_test = analysistest.make(_run_environment_test_impl)
_no_environment_test = analysistest.make(_no_environment_test_impl, expect_failure = True)

def _skipping_test_impl(ctx):
    env = unittest.begin(ctx)
    for target in ctx.attr.constraints:
        met = ctx.target_platform_has_constraint(target[platform_common.ConstraintValueInfo])
        asserts.equals(env, target.label.name == "runs_here", met, target.label.name)
    return unittest.end(env)

_skipping_test = unittest.make(
    _skipping_test_impl,
    attrs = {"constraints": attr.label_list(doc = "Those that decide whether a target is SKIPPED.")},
)

def _declared_test_impl(ctx):
    env = unittest.begin(ctx)
    declared = json.decode(ctx.attr.declared)
    layer = declared["l2_4card_sample"]
    asserts.equals(
        env,
        [
            "4card",
            "cpu:4",
            "l2",
            "l2-4card",
            "manual",
            "mech_all_reduce",
            "mech_saved_tensors_hooks",
            "nightly",
            "resources:card:4",
            "tools",
        ],
        sorted(layer["tags"]),
    )
    asserts.equals(env, {"cards": "4"}, layer["exec_properties"])
    asserts.equals(env, ["medium", "moderate", 2], [layer["size"], layer["timeout"], layer["shard_count"]])
    jobs = declared["l2_4card_jobs_sample"]
    asserts.equals(
        env,
        ["4card", "cpu:4", "l2", "l2-4card", "manual", "resources:card:4", "tools"],
        sorted(jobs["tags"]),
        "a target keeps its cards for its jobs",
    )
    asserts.equals(env, {"cards": "4"}, jobs["exec_properties"])
    asserts.equals(
        env,
        ["2card", "cpu:2", "faults", "faults-2card", "manual", "nightly", "resources:card:2", "tools"],
        sorted(declared["faults_2card_sample"]["tags"]),
    )
    for name, kind in {"l0": "test_suite", "l0_1card": "torchrun_test", "l1": "test_suite", "l4": "test_suite"}.items():
        asserts.equals(env, kind, declared[name]["kind"], name)
    return unittest.end(env)

_declared_test = unittest.make(
    _declared_test_impl,
    attrs = {"declared": attr.string(doc = "JSON: what the macros declared, by target.")},
)

def _declared():
    """What is only visible while the package is loaded: tags, sizes, execution properties."""
    facts = ["exec_properties", "kind", "shard_count", "size", "tags", "timeout"]
    return json.encode({
        name: {fact: rule[fact] for fact in facts if fact in rule}
        for name, rule in native.existing_rules().items()
        if rule["kind"] in ["test_suite", "torchrun_test"]
    })

# buildifier: disable=unnamed-macro
def rule_tests():
    """Declares the tests of this file; the targets under test must stand above the call."""
    for name, rule, target in [
        ("domain_files_test", _domain_files_test, ":engine_sample"),
        ("engine_test", _engine_test, ":engine_sample"),
        ("fault_arguments_test", _fault_arguments_test, ":faults_2card_sample"),
        ("fault_jobs_arguments_test", _fault_jobs_arguments_test, ":faults_2card_jobs_sample"),
        ("fault_proofs_test", _fault_proofs_test, ":faults_2card_proofs_sample"),
        ("fault_setting_test", _fault_setting_test, ":l2_4card_sample"),
        ("jobs_arguments_test", _jobs_arguments_test, ":l2_4card_jobs_sample"),
        ("layer_arguments_test", _layer_arguments_test, ":l2_4card_sample"),
        ("no_environment_test", _no_environment_test, ":no_environment"),
        ("run_environment_test", _run_environment_test, ":l2_4card_sample"),
        ("runfiles_test", _runfiles_test, ":l2_4card_sample"),
    ]:
        rule(
            name = name,
            size = "small",
            tags = ["l0"],
            target_under_test = target,
        )
    _skipping_test(
        name = "skipping_test",
        size = "small",
        constraints = [
            "//tools/rules:engine_has_no_adapter",
            "//tools/rules:not_for_this_engine",
            "//tools/rules:runs_here",
        ],
        tags = ["l0"],
    )
    _declared_test(
        name = "declared_test",
        size = "small",
        declared = _declared(),
        tags = ["l0"],
    )
