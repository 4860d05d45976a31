"""The command that refreshes the locks: `tools/bazel run //third_party/python:lock -- GROUP...`."""

load(":environment_info.bzl", "PythonEnvironmentInfo")

_STUB = """\
#!/usr/bin/env bash
set -euo pipefail
runfiles="${{RUNFILES_DIR:-$0.runfiles}}"
exec {interpreter} "$runfiles/{workspace}/{script}" --uv="$runfiles/{workspace}/{site}/bin/uv" --pip-python={interpreter} "$@"
"""

def _lock_command_impl(ctx):
    environment = ctx.attr.environment[PythonEnvironmentInfo]
    stub = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(stub, is_executable = True, content = _STUB.format(
        interpreter = environment.interpreter,
        script = ctx.file.script.short_path,
        site = environment.site.short_path,
        workspace = ctx.workspace_name,
    ))
    return DefaultInfo(executable = stub, runfiles = ctx.runfiles([ctx.file.script, environment.site]))

lock_command = rule(
    implementation = _lock_command_impl,
    doc = "Runs lock.py with the locked uv.",
    attrs = {
        "environment": attr.label(
            doc = "The environment that brings uv.",
            mandatory = True,
            providers = [PythonEnvironmentInfo],
        ),
        "script": attr.label(
            doc = "lock.py.",
            allow_single_file = [".py"],
            mandatory = True,
        ),
    },
    executable = True,
)
