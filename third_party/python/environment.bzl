"""Builds or finds the Python environment that tests run in.

    python_environment(name = "python_cpu", device = "cpu", lock = "//third_party/python:requirements_cpu.lock")

makes `@python_cpu//:environment` (a PythonEnvironmentInfo) and `@python_cpu//:platform` (an execution platform that
carries the environment's digest). Two modes:

* locked: pip fills one directory from the lock, every package hash-checked. The directory is one label, so that a
  test's runfiles hold one entry and not twenty thousand.
* fingerprint: nothing is shipped; the packages of an existing environment are used where they are, and versions,
  file lists, driver and runtime are recorded. For stacks that belong to a machine (CUDA, CANN).

`--repo_env=HYPER_PARALLEL_TESTS_PYTHON=/path/to/python` names that existing environment, for any device;
`--repo_env=HYPER_PARALLEL_TESTS_INTERPRETER=/path/to/python3.11` names the interpreter of locked ones (default:
python3.11 on PATH).
"""

load(":interpreter.bzl", "check_version", "find_python")

# The variables that describe.py reads: a change of one makes the description stale.
_ACCELERATOR_VARIABLES = {
    "cpu": [],
    "cuda": ["CUDA_HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH"],
    "npu": ["ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH"],
}

_BUILD = """\
load("{info}", "python_environment_info")

package(default_visibility = ["//visibility:public"])

python_environment_info(
    name = "environment",
    device = {device},
    executable_paths = {executable_paths},
    fingerprint = "fingerprint.json",
    import_paths = {import_paths},
    interpreter = {interpreter},
    site = {site},
    variables = {variables},
)

platform(
    name = "platform",
    exec_properties = {{"env": {digest}}},
    parents = ["{platform}"],
)

exports_files(["fingerprint.json"])
"""

_BUILD_OF_EXISTING = """\
package(default_visibility = ["//visibility:public"])

alias(
    name = "environment",
    actual = "@{repository}//:environment",
)

alias(
    name = "platform",
    actual = "@{repository}//:platform",
)
"""

_BUILD_WITHOUT_ENVIRONMENT = """\
load("{info}", "python_environment_info")

package(default_visibility = ["//visibility:public"])

python_environment_info(
    name = "environment",
    problem = {problem},
)

platform(
    name = "platform",
    parents = ["{platform}"],
)
"""

# What the targets of a description load.
def _labels(rctx):
    return {
        "info": Label("//third_party/python:environment_info.bzl"),
        "platform": Label("//tools/rules/platforms:" + rctx.attr.device),
    }

def _described_environment_impl(rctx):
    if rctx.attr.replacement and rctx.getenv("HYPER_PARALLEL_TESTS_PYTHON"):
        rctx.file("BUILD.bazel", _BUILD_OF_EXISTING.format(repository = rctx.attr.replacement))
    elif rctx.attr.mode == "locked":
        _write(rctx, find_python(rctx), rctx.attr.site)
    else:
        # Not an error yet: queries over all targets load this repository on machines without the device.
        problem = _no_environment(rctx.attr.device, rctx.name)
        rctx.file("BUILD.bazel", _BUILD_WITHOUT_ENVIRONMENT.format(problem = repr(problem), **_labels(rctx)))

def _existing_environment_impl(rctx):
    existing = rctx.getenv("HYPER_PARALLEL_TESTS_PYTHON")
    if not existing:
        rctx.file("BUILD.bazel", "")
        return
    _write(rctx, check_version(rctx, existing), None)

def _write(rctx, python, site):
    described = _describe(rctx, python, site != None)
    rctx.file("fingerprint.json", json.encode_indent(described["fingerprint"]) + "\n")
    rctx.file("BUILD.bazel", _BUILD.format(
        device = repr(rctx.attr.device),
        digest = repr(described["digest"]),
        executable_paths = repr(described["executable_paths"]),
        import_paths = repr(described["import_paths"]),
        interpreter = repr(described["interpreter"]),
        site = repr(site),
        variables = repr(described["variables"]),
        **_labels(rctx)
    ))

def _installed_packages_impl(rctx):
    rctx.report_progress("installing {} with pip".format(rctx.attr.lock.name))
    lock = "{}/{}".format(rctx.attr.lock.package, rctx.attr.lock.name)
    done = rctx.execute(
        [
            find_python(rctx),
            "-I",
            rctx.path(rctx.attr._install),
            "--lock={}".format(rctx.path(rctx.attr.lock)),
            "--lock-name=" + lock,
            "--target=site",
        ],
        timeout = 3600,
    )
    if done.return_code:
        fail("\n\n" + done.stderr.strip() + "\n")
    rctx.file("BUILD.bazel", 'exports_files(["site"])\n')

def _describe(rctx, python, shipped):
    """Runs describe.py and watches what it names, so that an upgrade behind Bazel's back is seen."""
    for variable in _ACCELERATOR_VARIABLES[rctx.attr.device]:
        rctx.getenv(variable)
    command = [python, "-I", rctx.path(rctx.attr._describe), "--device=" + rctx.attr.device]
    if shipped:
        command.append("--lock={}".format(rctx.path(rctx.attr.lock)))
    done = rctx.execute(command)
    if done.return_code:
        fail("{} cannot be described:\n{}".format(python, done.stderr))
    described = json.decode(done.stdout)
    for path in described["watch"]:
        rctx.watch(path)
    if not shipped:
        for path in described["import_paths"]:
            rctx.path(path).readdir(watch = "yes")
    return described

def _no_environment(device, name):
    return ("No Python environment for device {device}: its packages belong to a machine and are not shipped. Name the Python of an " +
            "environment that has them with --repo_env=HYPER_PARALLEL_TESTS_PYTHON=/path/to/python (after the vendor's " +
            "set-up script), or set mode = \"locked\" at {name} in WORKSPACE to install third_party/python/requirements_{device}.lock.").format(
        device = device,
        name = name,
    )

_DEVICE = attr.string(doc = "Whose packages these are.", values = ["cpu", "cuda", "npu"])

_described_environment = repository_rule(
    implementation = _described_environment_impl,
    doc = "Everything about an environment but its packages: cheap, and works where the packages cannot be had.",
    attrs = {
        "device": _DEVICE,
        "lock": attr.label(doc = "Hash-locked requirements.", allow_single_file = [".lock"]),
        "mode": attr.string(doc = "Locked or fingerprint.", values = ["fingerprint", "locked"]),
        "replacement": attr.string(doc = "The _existing_environment that HYPER_PARALLEL_TESTS_PYTHON puts in its place, if any."),
        "site": attr.string(doc = "Label of the directory of packages, for mode locked."),
        "_describe": attr.label(default = "//third_party/python:describe.py"),
    },
)

_existing_environment = repository_rule(
    implementation = _existing_environment_impl,
    doc = """Everything about the environment that HYPER_PARALLEL_TESTS_PYTHON names.

    A repository of its own, so that nobody misses the environment who no longer names it: Bazel refuses to load a
    repository that has listed a directory which is gone.
    """,
    attrs = {
        "device": _DEVICE,
        "_describe": attr.label(default = "//third_party/python:describe.py"),
    },
)

_installed_packages = repository_rule(
    implementation = _installed_packages_impl,
    doc = "The packages of one lock in one directory, `//:site`.",
    attrs = {
        "lock": attr.label(doc = "Hash-locked requirements.", allow_single_file = [".lock"]),
        "_install": attr.label(default = "//third_party/python:install.py"),
    },
)

def python_environment(name, lock, device = "cpu", mode = "locked", replaceable = True):
    """Declares one environment; see the file's head.

    Args:
      name: the repository; its packages are in another one, `<name>_site`, and what may stand in for
        it in `<name>_existing`.
      lock: hash-locked requirements; third_party/python/README.md tells how they are made.
      device: whose packages these are; the accelerator's driver and runtime versions enter the fingerprint.
      mode: `locked` builds the environment from the lock, `fingerprint` describes an existing one.
      replaceable: whether HYPER_PARALLEL_TESTS_PYTHON may stand in for it. False for environments of tools.
    """
    _described_environment(
        name = name,
        device = device,
        lock = lock,
        mode = mode,
        replacement = name + "_existing" if replaceable else "",
        site = "@{}_site//:site".format(name),
    )
    if replaceable:
        _existing_environment(
            name = name + "_existing",
            device = device,
        )
    _installed_packages(
        name = name + "_site",
        lock = lock,
    )
