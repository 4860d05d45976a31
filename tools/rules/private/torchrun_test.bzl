"""The test rule: N ranks on N cards run pytest files in step, through the harness' launcher."""

load("@bazel_skylib//rules:common_settings.bzl", "BuildSettingInfo")
load("@rules_python//python:py_info.bzl", "PyInfo")
load("//third_party/python:environment_info.bzl", "PythonEnvironmentInfo")
load(":engines.bzl", "ENGINE_ENVIRONMENT")

# The same in every run, whoever starts it.
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "TZ": "UTC",
}

# More would double the time of a run of everything; --config=nightly proves all.
_FAULTS_PER_CONTRACT = 3

# Ranks of one test meet on the loopback: a host's name need not resolve, a farm's network need not exist.
_LOOPBACK = {
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
}

_DEVICE_ENVIRONMENT = {
    "cpu": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "cuda": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "npu": {},
}

def _torchrun_test_impl(ctx):
    environment = ctx.attr._environment[PythonEnvironmentInfo]
    device = ctx.attr._device[BuildSettingInfo].value
    engine = ctx.attr._engine[BuildSettingInfo].value
    variables = _LOOPBACK | _DEVICE_ENVIRONMENT[device] | ENGINE_ENVIRONMENT.get(engine, {}) | environment.variables
    directories = depset(transitive = [dep[PyInfo].imports for dep in ctx.attr.deps]).to_list()
    if environment.site:
        directories.append(environment.site.short_path.removeprefix("../"))
    stub = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.expand_template(
        output = stub,
        template = ctx.file._stub,
        is_executable = True,
        substitutions = {
            "%{arguments}": " ".join([_quoted(argument) for argument in _arguments(ctx, device, engine)]),
            "%{directories}": " ".join([_quoted(directory) for directory in directories]),
            "%{executable_paths}": _quoted(":".join(environment.executable_paths)),
            "%{import_paths}": _quoted(":".join(environment.import_paths)),
            "%{interpreter}": _quoted(environment.interpreter),
            "%{workspace}": _quoted(ctx.workspace_name),
        },
    )
    return [
        DefaultInfo(executable = stub, runfiles = _runfiles(ctx, environment)),
        RunEnvironmentInfo(environment = _ENVIRONMENT | variables),
        testing.ExecutionInfo(_execution_requirements(device, ctx.attr.tags)),
    ]

def _execution_requirements(device, tags):
    # The launcher stops its ranks and prints their stacks when it is told to end.
    requirements = {"supports-graceful-termination": "1"}
    if device == "cpu" and "requires-network" not in tags:
        # A loopback of its own: no test reaches the network, no two tests meet on a port. Accelerators talk over real links.
        requirements["block-network"] = "1"
    return requirements

def _arguments(ctx, device, engine):
    fault = ctx.attr._fault[BuildSettingInfo].value
    arguments = ["--cards={}".format(ctx.attr.cards), "--device=" + device, "--engine=" + engine]
    if ctx.attr.jobs:
        arguments.append("--jobs")
    if ctx.attr.layer:
        arguments.append("--layer=" + ctx.attr.layer)
    if ctx.attr.faults or ctx.attr.proofs:
        arguments.append("--faults_per_contract={}".format(_FAULTS_PER_CONTRACT))
    if ctx.attr.faults:
        arguments.append("--faults=" + ",".join(ctx.attr.faults))
    elif fault and not ctx.attr.proofs:
        arguments.append("--fault=" + fault)
    if ctx.attr.proofs:
        places = {src.basename: src.short_path for src in ctx.files.srcs}
        return arguments + [
            "--proof={}:{}".format(catalogue, ",".join([places[file] for file in files]))
            for catalogue, files in ctx.attr.proofs.items()
        ]
    return arguments + [src.short_path for src in ctx.files.srcs]

def _runfiles(ctx, environment):
    of_domain = [file for file in ctx.files.by_domain if file.basename == ctx.attr.domain + ".toml"]
    files = ctx.files.srcs + ctx.files.data + of_domain + [environment.fingerprint]
    if environment.site:
        files.append(environment.site)
    sources = depset(transitive = [dep[PyInfo].transitive_sources for dep in ctx.attr.deps])
    others = [target[DefaultInfo].default_runfiles for target in ctx.attr.deps + ctx.attr.data + ctx.attr.srcs]
    return ctx.runfiles(files, transitive_files = sources).merge_all(others)

def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"

torchrun_test = rule(
    implementation = _torchrun_test_impl,
    doc = """Runs pytest files on `cards` ranks, all ranks the same case at the same time.

Use layer_test or fault_test, which derive what can be derived.""",
    attrs = {
        "by_domain": attr.label_list(
            doc = "Files called <domain>.toml, of which the test sees its own: those of other domains do not re-run it.",
            allow_files = [".toml"],
        ),
        "cards": attr.int(
            doc = "Ranks to start, one per card; with `jobs` the most that a job may have.",
            mandatory = True,
        ),
        "data": attr.label_list(
            doc = "Files that the cases read.",
            allow_files = True,
        ),
        "deps": attr.label_list(
            doc = "Python libraries that the cases import.",
            providers = [PyInfo],
        ),
        "domain": attr.string(
            doc = "The capability that the cases are about.",
        ),
        "faults": attr.string_list(
            doc = "Fault catalogues to prove: each of their faults must make a case fail. Empty: the cases must pass.",
        ),
        "jobs": attr.bool(
            doc = "Whether one rank runs the cases, and they start jobs of up to `cards` ranks.",
        ),
        "layer": attr.string(
            doc = "The layer of the cases, where they are of one layer.",
        ),
        "proofs": attr.string_list_dict(
            doc = "Fault catalogue -> names of the srcs that must notice its faults, instead of `faults` and all srcs.",
        ),
        "srcs": attr.label_list(
            doc = "pytest files.",
            allow_files = [".py"],
            mandatory = True,
        ),
        "_device": attr.label(default = "//tools/rules:device"),
        "_engine": attr.label(default = "//tools/rules:engine"),
        "_environment": attr.label(
            default = "//third_party/python:environment",
            providers = [PythonEnvironmentInfo],
        ),
        "_fault": attr.label(default = "//tools/rules:fault"),
        "_stub": attr.label(
            default = "//tools/rules/private:torchrun_test.sh.tpl",
            allow_single_file = True,
        ),
    },
    test = True,
)
