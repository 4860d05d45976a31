"""Brings buildifier: the npm package carries the binaries, npm checks it against package-lock.json."""

_ADVICE = ("The BUILD and .bzl files are unchecked, because there is no npm on PATH: buildifier comes from the npm package " +
           "@bazel/buildifier. Install Node.js with npm (Debian: apt-get install npm).")

_MISSING = """\
#!/bin/sh
cat >&2 <<'END'
{advice}
END
exit 1
"""

def _buildifier_impl(rctx):
    npm = rctx.which("npm")
    if npm:
        _install(rctx, npm)
    else:
        _watch_for_npm(rctx)
        rctx.file("buildifier", _MISSING.format(advice = _ADVICE), executable = True)
    rctx.file("BUILD.bazel", 'exports_files(["buildifier"])\n')

def _install(rctx, npm):
    rctx.report_progress("installing buildifier with npm")
    rctx.file("package.json", rctx.read(rctx.attr.package_json))
    rctx.file("package-lock.json", rctx.read(rctx.attr.package_lock))
    done = rctx.execute([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
    if done.return_code:
        fail("\n\nnpm could not install tools/lint/package-lock.json:\n{}\n{}\n".format(done.stdout.strip(), done.stderr.strip()))
    system = "darwin" if rctx.os.name.startswith("mac") else "linux"
    machine = {"aarch64": "arm64", "x86_64": "amd64"}.get(rctx.os.arch, rctx.os.arch)
    binary = rctx.path("node_modules/@bazel/buildifier/buildifier-{}_{}".format(system, machine))
    if not binary.exists:
        fail("\n\n@bazel/buildifier has no binary for {} on {}.\n".format(rctx.os.arch, rctx.os.name))
    rctx.symlink(binary, "buildifier")

def _watch_for_npm(rctx):
    """Looks again as soon as an npm appears anywhere on PATH."""
    for directory in (rctx.getenv("PATH") or "").split(":"):
        if directory.startswith("/"):
            rctx.watch(directory + "/npm")

buildifier = repository_rule(
    implementation = _buildifier_impl,
    doc = "Makes `//:buildifier`. Without npm it is a program that says so and fails: a lint that cannot run is not green.",
    attrs = {
        "package_json": attr.label(
            doc = "Names the package.",
            allow_single_file = True,
            mandatory = True,
        ),
        "package_lock": attr.label(
            doc = "Pins it by its integrity hash.",
            allow_single_file = True,
            mandatory = True,
        ),
    },
)
