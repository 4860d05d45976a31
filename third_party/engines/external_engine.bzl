"""Brings an engine's sources into the build, one library per folder of its package.

    external_engine(name = "hyper_parallel", leave_out = ["platform/mindspore"])

Where the sources are from, the first of these that is given:

* `--repo_env=HYPER_PARALLEL_PATH=/path/to/checkout` (the repository's name in capitals), a checkout at work: an edit
  re-runs what depends on it, and nothing else;
* `path`, a checkout relative to the workspace;
* `url` and `sha256`, an archive;
* `remote` and `commit`, a git repository.

With none of them the engine is absent: `:at_hand` is a constraint that no platform meets, so that tests of it are SKIPPED.
BUILD files name the folders that they need, `load("@hyper_parallel//:engine.bzl", "libraries")`; what those need in turn
is read from their imports.
"""

load("//third_party/python:interpreter.bzl", "find_python")

_LIBRARY = """
py_library(
    name = {name},
    srcs = {srcs},
    data = {data},
    imports = ["."],
    deps = {deps},
)
"""

_PACKAGES = """
packages_library(
    name = "packages",
    directory = {directory},
)
"""

_ALIAS = """
alias(
    name = {name},
    actual = {actual},
)
"""

_HEAD = """\
load("@rules_python//python:defs.bzl", "py_library")
load("{packages_library}", "packages_library")

package(default_visibility = ["//visibility:public"])

# Every platform has the default value, so `at_hand` is met by all of them if it is {met}, by none if it is {unmet}.
constraint_setting(
    name = "source",
    default_constraint_value = ":{met}",
)

constraint_value(
    name = "{met}",
    constraint_setting = ":source",
)

constraint_value(
    name = "{unmet}",
    constraint_setting = ":source",
)

alias(
    name = "at_hand",
    actual = ":{value}",
)
"""

_ENGINE = '''\
"""What of the engine there is."""

ENGINE_AT_HAND = {at_hand}

_FOLDERS = {folders}

def libraries(folders):
    """The libraries of those of the folders that this version of the engine has.

    Args:
      folders: relative to the package, for example ["core/fully_shard"]. Give all the names that a folder has had: those
        that this version has not count for nothing. "" is the package's root.

    Returns:
      A list of labels for deps; empty where the engine is absent.
    """
    return sorted({{_FOLDERS[folder]: True for folder in folders if folder in _FOLDERS}}.keys())
'''

def _source_impl(rctx):
    """One folder `checkout`, wherever the sources are from, and source.json, which says so."""
    named = rctx.getenv(rctx.attr.variable)
    path = named or rctx.attr.path
    if path:
        origin = "{}={}".format(rctx.attr.variable, named) if named else path
        place = rctx.path(path) if path.startswith("/") else rctx.workspace_root.get_child(path)
        _check(rctx, place, origin)
        rctx.watch(place.get_child(rctx.attr.package, "__init__.py"))
        rctx.symlink(place, "checkout")
    else:
        origin = _get_checkout(rctx, rctx.path("checkout"))
        if origin:
            _check(rctx, rctx.path("checkout"), origin)
        else:
            # What is watched must exist, or Bazel says nothing but "inconsistent file system" from then on.
            rctx.file("checkout/{}/absent".format(rctx.attr.package))
    rctx.file("source.json", json.encode({"origin": origin}))
    rctx.file("BUILD.bazel", "")

def _check(rctx, place, origin):
    _execute(rctx, ["--checkout={}".format(place), "--package=" + rctx.attr.package, "--origin=" + origin])

def _get_checkout(rctx, checkout):
    """Puts the sources there; returns where they are from, None where nothing was given."""
    if rctx.attr.url:
        if not rctx.attr.sha256:
            fail("{}: give the sha256 too, so that it is known what is tested".format(rctx.attr.url))
        rctx.report_progress("downloading {}".format(rctx.attr.url))
        rctx.download_and_extract(
            rctx.attr.url,
            output = checkout,
            sha256 = rctx.attr.sha256,
            stripPrefix = rctx.attr.strip_prefix,
        )
        return rctx.attr.url
    if rctx.attr.remote:
        _clone(rctx, checkout)
        return "{} at {}".format(rctx.attr.remote, rctx.attr.commit)
    return None

def _clone(rctx, checkout):
    """The whole history: it tells which commit last touched a library."""
    if not rctx.attr.commit:
        fail("{}: give the commit too, so that it is known what is tested".format(rctx.attr.remote))
    rctx.report_progress("cloning {}".format(rctx.attr.remote))
    for words in [
        ["clone", "--quiet", "--no-checkout", rctx.attr.remote, checkout],
        ["-C", checkout, "checkout", "--quiet", "--detach", rctx.attr.commit],
    ]:
        done = rctx.execute(["git"] + words, timeout = 1800)
        if done.return_code:
            fail("{} at {} cannot be had:\n{}".format(rctx.attr.remote, rctx.attr.commit, done.stderr.strip()))

def _libraries_impl(rctx):
    package = rctx.attr.package
    source = json.decode(rctx.read(rctx.attr.source))
    if not source["origin"]:
        unmet = rctx.attr.variable + "_is_not_set"
        rctx.file("BUILD.bazel", _head(unmet = unmet, value = unmet))
        rctx.file("engine.bzl", _ENGINE.format(at_hand = False, folders = {}))
        return
    checkout = rctx.path(rctx.attr.source).dirname.get_child("checkout")
    brought = json.decode(_execute(rctx, [
        "--checkout={}".format(checkout.realpath),
        "--package=" + package,
        "--origin=" + source["origin"],
        "--into=.",
    ] + ["--leave-out=" + folder for folder in rctx.attr.leave_out]))
    rctx.watch_tree(checkout.get_child(package))
    for file in brought["watch"]:
        rctx.watch(file)
    build = _head(unmet = "missing", value = "found")
    if rctx.attr.packages:
        build += _PACKAGES.format(directory = repr(str(rctx.attr.packages)))
    for library in brought["libraries"]:
        build += _rules(library, package, [":packages"] if rctx.attr.packages else [])
    labels = {
        folder: "@{}//:{}".format(rctx.name, library["folders"][0] or package)
        for library in brought["libraries"]
        for folder in library["folders"]
    }
    rctx.file("BUILD.bazel", build + _rules(_everything(labels), package, []))
    rctx.file("engine.bzl", _ENGINE.format(at_hand = True, folders = json.encode_indent(labels)))

def _execute(rctx, words):
    script = [rctx.path(script) for script in rctx.attr._scripts if script.name == "bring_in.py"][0]
    done = rctx.execute([find_python(rctx), "-B", "-s", "-E", script] + words)
    if done.return_code:
        fail("\n\n" + done.stderr.strip() + "\n")
    return done.stdout

def _head(unmet, value):
    return _HEAD.format(
        met = "found",
        packages_library = Label("//third_party/engines:packages_library.bzl"),
        unmet = unmet,
        value = value,
    )

def _rules(library, package, deps):
    names = [folder or package for folder in library["folders"]]
    rules = _LIBRARY.format(
        name = repr(names[0]),
        data = repr(library["data"]),
        deps = repr(deps + [":" + (folder or package) for folder in library["needs"]]),
        srcs = repr(library["srcs"]),
    )
    return rules + "".join([_ALIAS.format(name = repr(name), actual = repr(":" + names[0])) for name in names[1:]])

def _everything(labels):
    return {"folders": ["all"], "needs": sorted(labels), "srcs": [], "data": []}

_SCRIPTS = attr.label_list(default = [
    "//third_party/engines:bring_in.py",
    "//third_party/engines:describe.py",
    "//third_party/engines:imports.py",
    "//third_party/engines:lazy_root.py",
    "//third_party/engines:libraries.py",
])

_engine_source = repository_rule(
    implementation = _source_impl,
    doc = "The sources as they are. A repository apart, since the libraries watch a folder of it, and that must not vanish.",
    attrs = {
        "commit": attr.string(doc = "Full id of the commit to take from `remote`."),
        "package": attr.string(doc = "Python package of the engine."),
        "path": attr.string(doc = "A checkout."),
        "remote": attr.string(doc = "URL of a git repository."),
        "sha256": attr.string(doc = "Of the archive at `url`."),
        "strip_prefix": attr.string(doc = "The archive's top folder."),
        "url": attr.string(doc = "URL of an archive."),
        "variable": attr.string(doc = "Variable that names a checkout and wins."),
        "_scripts": _SCRIPTS,
    },
)

_engine_libraries = repository_rule(
    implementation = _libraries_impl,
    doc = "The engine's package, one library per folder.",
    attrs = {
        "leave_out": attr.string_list(doc = "Folders of the package that are not brought in."),
        "package": attr.string(doc = "Python package of the engine."),
        "packages": attr.label(doc = "Directory of packages that the engine imports."),
        "source": attr.label(doc = "source.json beside the checkout."),
        "variable": attr.string(doc = "Variable that names a checkout."),
        "_scripts": _SCRIPTS,
    },
)

def external_engine(name, package = None, packages = None, leave_out = [], **source):
    """Declares an engine; see the file's head.

    Args:
      name: the repository; its sources are in another one, `<name>_source`.
      package: Python package of the engine in its checkout. Default: the name.
      packages: directory of what it imports beyond the test environment: the `site` of a python_environment.
      leave_out: folders of the package that are not brought in, relative to it.
      **source: where the sources are from unless <NAME>_PATH says it: `path`, or `url`, `sha256` and `strip_prefix`, or
        `remote` and `commit`. None: absent.
    """
    variable = name.upper() + "_PATH"
    _engine_source(
        name = name + "_source",
        package = package or name,
        variable = variable,
        **source
    )
    _engine_libraries(
        name = name,
        leave_out = leave_out,
        package = package or name,
        packages = packages,
        source = "@{}_source//:source.json".format(name),
        variable = variable,
    )
