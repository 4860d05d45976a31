"""The lint as a test target: cached until a source file, a tool or a setting changes."""

load("//third_party/python:environment_info.bzl", "PythonEnvironmentInfo")

_STUB = """\
#!/usr/bin/env bash
set -euo pipefail
runfiles="${{TEST_SRCDIR:-${{RUNFILES_DIR:-$0.runfiles}}}}"
[[ "$runfiles" == /* ]] || runfiles="$PWD/$runfiles"
site="$runfiles/{site}"
# A remote worker leaves source directories out of the runfiles tree; they are among the action's inputs all the same.
[[ -e "$site" ]] || site="${{runfiles%%/bazel-out/*}}/external/{site}"
cd "$runfiles/{workspace}"
exec {interpreter} -S -s -P {script} --ruff="$site/bin/ruff" --buildifier="$runfiles/{buildifier}" --config={config} {files}
"""

def _lint_test_impl(ctx):
    environment = ctx.attr.environment[PythonEnvironmentInfo]
    file_list = ctx.actions.declare_file(ctx.label.name + ".files")
    ctx.actions.write(file_list, "".join([source.short_path + "\n" for source in ctx.files.sources]))
    stub = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(stub, is_executable = True, content = _STUB.format(
        buildifier = ctx.file.buildifier.short_path.removeprefix("../"),
        config = ctx.file.config.short_path,
        files = file_list.short_path,
        interpreter = environment.interpreter,
        script = ctx.file.script.short_path,
        site = environment.site.short_path.removeprefix("../"),
        workspace = ctx.workspace_name,
    ))
    files = ctx.files.sources + [file_list, ctx.file.buildifier, ctx.file.config, ctx.file.script, environment.site]
    return DefaultInfo(executable = stub, runfiles = ctx.runfiles(files))

lint_test = rule(
    implementation = _lint_test_impl,
    doc = "Runs ruff and buildifier over source files.",
    attrs = {
        "buildifier": attr.label(
            doc = "The buildifier binary.",
            allow_single_file = True,
            mandatory = True,
        ),
        "config": attr.label(
            doc = "pyproject.toml with ruff's settings.",
            allow_single_file = True,
            mandatory = True,
        ),
        "environment": attr.label(
            doc = "The environment that brings ruff.",
            mandatory = True,
            providers = [PythonEnvironmentInfo],
        ),
        "script": attr.label(
            doc = "lint.py.",
            allow_single_file = [".py"],
            mandatory = True,
        ),
        "sources": attr.label_list(
            doc = "The files to check.",
            allow_files = True,
            mandatory = True,
        ),
    },
    test = True,
)
