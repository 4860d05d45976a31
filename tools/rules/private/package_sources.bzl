"""All of the repository's source files as one label, with no list to keep."""

_PATTERNS = [
    "*.bzl",
    "*.py",
    "BUILD",
    "BUILD.bazel",
    "WORKSPACE",
]

# buildifier: disable=unnamed-macro
def package_sources(extra = []):
    """Declares `:sources`: the package's Python and Starlark files, and `:sources` of every package below it.

    Since each package takes in the ones below, //:sources is everything, and a package that forgets this call is an error
    of Bazel's that names it. A package with layer_suites() needs no call of its own.

    Args:
      extra: files that the patterns do not cover, such as scripts without a suffix.
    """
    below = native.subpackages(
        allow_empty = True,
        exclude = ["bazel-*/**"],
        include = ["**"],
    )
    prefix = native.package_name() + "/" if native.package_name() else ""
    native.filegroup(
        name = "sources",
        srcs = extra + native.glob(
            ["**/" + pattern for pattern in _PATTERNS],
            allow_empty = True,
            exclude = ["bazel-*/**"],
        ) + ["//{}{}:sources".format(prefix, package) for package in below],
        visibility = ["//visibility:public"],
    )
