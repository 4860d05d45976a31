"""Makes the content of TOML files known to BUILD files, which cannot read files."""

load("//third_party/python:interpreter.bzl", "find_python")

_SCRIPT = "import sys, tomllib; print(repr(tomllib.load(open(sys.argv[1], 'rb'))))"

def _toml_data_impl(rctx):
    python = find_python(rctx)
    rctx.file("BUILD.bazel", "")
    lines = ['"""The content of TOML files."""', ""]
    for file, name in rctx.attr.files.items():
        done = rctx.execute([python, "-I", "-c", _SCRIPT, rctx.path(file)])
        if done.return_code:
            fail("\n\n//{}:{}: {}\n".format(file.package, file.name, done.stderr.strip().split("\n")[-1]))

        # Python writes texts, numbers, lists and tables as Starlark does.
        lines.append("{} = {}".format(name, done.stdout.strip()))
    rctx.file("data.bzl", "\n".join(lines) + "\n")

toml_data = repository_rule(
    implementation = _toml_data_impl,
    doc = "`load(\"@<name>//:data.bzl\", ...)` gives what TOML files say, read anew when one changes.",
    attrs = {
        "files": attr.label_keyed_string_dict(
            doc = "TOML file -> the name of its content. No dates in it: Starlark has none.",
            allow_files = [".toml"],
            mandatory = True,
        ),
    },
)
