"""All of the repository's source files as one label, with no list to keep."""

_PATTERNS = [
    "*.bzl",
    "*.py",
    "*.toml",
    "BUILD",
    "BUILD.bazel",
    "WORKSPACE",
]

# Not sources: what tools leave behind, and Bazel's links into its output, where a recursive glob would walk for minutes.
_NOT_OURS = [
    ".*",
    "__pycache__",
    "bazel-*",
    "node_modules",
]

# buildifier: disable=unnamed-macro
def package_sources(extra = []):
    """Declares `:sources`: the package's Python and Starlark files, and `:sources` of every package below it.

    Since each package takes in the ones below, //:sources is everything, and a package that forgets this call is an error
    of Bazel's that names it. A package with layer_suites() needs no call of its own.

    Args:
      extra: files that the patterns do not cover, such as scripts without a suffix.
    """
    entries = native.glob(
        ["*"],
        allow_empty = True,
        exclude = _NOT_OURS,
        exclude_directories = 0,
    )
    below = native.subpackages(
        allow_empty = True,
        exclude = _NOT_OURS,
        include = ["*"],
    )
    deeper = native.subpackages(
        allow_empty = True,
        include = [entry + "/**" for entry in entries],
    )
    prefix = native.package_name() + "/" if native.package_name() else ""
    native.filegroup(
        name = "sources",
        srcs = extra + native.glob(
            _PATTERNS + ["{}/**/{}".format(entry, pattern) for entry in entries for pattern in _PATTERNS],
            allow_empty = True,
        ) + ["//{}{}:sources".format(prefix, package) for package in below + deeper],
        visibility = ["//visibility:public"],
    )
