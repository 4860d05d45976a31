"""A command in the environment that tests run in: the interpreter, the locked packages, the runfiles, nothing else."""

load("@rules_python//python:py_info.bzl", "PyInfo")
load("//third_party/python:environment_info.bzl", "PythonEnvironmentInfo")

_STUB = """\
#!/usr/bin/env bash
set -euo pipefail
runfiles="${{RUNFILES_DIR:-$0.runfiles}}"
[[ "$runfiles" == /* ]] || runfiles="$PWD/$runfiles"
import_path="$runfiles/{workspace}"
for directory in {packages}; do
  [[ "$directory" == /* ]] || directory="$runfiles/$directory"
  import_path+=":$directory"
done
export PYTHONPATH="$import_path" PATH={executable_paths}"$PATH"
unset PYTHONHOME PYTHONSTARTUP PYTHONINSPECT PYTHONBREAKPOINT PYTHONDONTWRITEBYTECODE
cd "$runfiles/{workspace}"
exec {interpreter} -S -s -P -m {module} "$@"
"""

def _python_tool_impl(ctx):
    environment = ctx.attr._environment[PythonEnvironmentInfo]
    shipped = [environment.site] if environment.site else []
    packages = [site.short_path.removeprefix("../") for site in shipped] + environment.import_paths
    stub = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(stub, is_executable = True, content = _STUB.format(
        executable_paths = "".join([_quoted(path + ":") for path in environment.executable_paths]),
        interpreter = _quoted(environment.interpreter),
        module = ctx.attr.module,
        packages = " ".join([_quoted(path) for path in packages]),
        workspace = ctx.workspace_name,
    ))
    sources = depset(transitive = [dep[PyInfo].transitive_sources for dep in ctx.attr.deps])
    others = [dep[DefaultInfo].default_runfiles for dep in ctx.attr.deps]
    runfiles = ctx.runfiles(shipped + [environment.fingerprint], transitive_files = sources).merge_all(others)
    return [
        DefaultInfo(executable = stub, runfiles = runfiles),
        RunEnvironmentInfo(environment = environment.variables),
    ]

def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"

python_tool = rule(
    implementation = _python_tool_impl,
    doc = "Runs a Python module with `bazel run`.",
    attrs = {
        "deps": attr.label_list(
            doc = "Python libraries: the module and what it imports.",
            mandatory = True,
            providers = [PyInfo],
        ),
        "module": attr.string(
            doc = "What `python -m` is to run, for example `tools.bench`.",
            mandatory = True,
        ),
        "_environment": attr.label(
            default = "//third_party/python:environment",
            providers = [PythonEnvironmentInfo],
        ),
    },
    executable = True,
)
