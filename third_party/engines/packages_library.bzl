"""A directory of installed packages as a Python library: what an engine imports beyond the test environment."""

load("@rules_python//python:py_info.bzl", "PyInfo")

def _packages_library_impl(ctx):
    directory = ctx.file.directory
    return [
        DefaultInfo(runfiles = ctx.runfiles([directory])),
        PyInfo(
            imports = depset([directory.short_path.removeprefix("../")]),
            transitive_sources = depset(),
        ),
    ]

packages_library = rule(
    implementation = _packages_library_impl,
    doc = "Puts one directory, a single runfile, on the import path.",
    attrs = {
        "directory": attr.label(
            doc = "The `site` of a python_environment.",
            allow_single_file = True,
            mandatory = True,
        ),
    },
)
