"""Tests of what external_engine makes of a checkout, of nothing, and of the names of folders."""

load("@absent_engine//:engine.bzl", absent_at_hand = "ENGINE_AT_HAND", absent_libraries = "libraries")
load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts", "unittest")
load("@rules_python//python:py_info.bzl", "PyInfo")

_ROOT = ["__init__.py"]
_CORE = ["core/__init__.py", "core/mesh.py"]
_CLIP = ["core/clip/__init__.py", "core/clip/grads.py", "core/norm/__init__.py", "core/norm/total.py"]
_PIPELINE = ["core/pipeline/__init__.py", "core/pipeline/stage.py"]
_SHARD = ["core/shard/__init__.py", "core/shard/ops/matmul.py"]

def _library_test_impl(ctx):
    env = analysistest.begin(ctx)
    library = analysistest.target_under_test(env)
    seen = [file.short_path.removeprefix("../made_up_engine/made_up/") for file in library[PyInfo].transitive_sources.to_list()]
    asserts.equals(env, sorted(ctx.attr.modules), sorted(seen))
    asserts.equals(env, ["made_up_engine"], library[PyInfo].imports.to_list())
    data = [file.short_path.removeprefix("../made_up_engine/") for file in library[DefaultInfo].default_runfiles.files.to_list()]
    for file in ctx.attr.data:
        asserts.true(env, file in data, "{} is missing among {}".format(file, data))
    return analysistest.end(env)

_library_test = analysistest.make(
    _library_test_impl,
    attrs = {
        "data": attr.string_list(doc = "Files that must come along."),
        "modules": attr.string_list(doc = "All modules that a target with this library sees, and so depends on."),
    },
)

def _constraint_test_impl(ctx):
    env = unittest.begin(ctx)
    names = [target.label.name for target in ctx.attr.constraints]
    asserts.equals(env, ["ABSENT_ENGINE_PATH_is_not_set", "found"], names)
    reached = [ctx.target_platform_has_constraint(target[platform_common.ConstraintValueInfo]) for target in ctx.attr.constraints]
    asserts.equals(env, [False, True], reached)
    return unittest.end(env)

_constraint_test = unittest.make(
    _constraint_test_impl,
    attrs = {"constraints": attr.label_list(providers = [platform_common.ConstraintValueInfo])},
)

def _names_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, ["@made_up_engine//:core/clip"], ctx.attr.libraries)
    asserts.equals(env, [True, False], [ctx.attr.at_hand, absent_at_hand])
    asserts.equals(env, [], absent_libraries(["core/clip", ""]))
    return unittest.end(env)

_names_test = unittest.make(
    _names_test_impl,
    attrs = {"at_hand": attr.bool(), "libraries": attr.string_list()},
)

# buildifier: disable=unnamed-macro
def engine_tests(at_hand, libraries):
    """Declares the tests of this file.

    Args:
      at_hand: what the made-up engine says of itself.
      libraries: what it gives for core/norm, core/clip and a folder that it has not.
    """
    for folder, modules, data in [
        ("core", _CORE, ["engine_info/core.json"]),
        ("core/pipeline", _CORE + _PIPELINE, []),
        ("core/clip", _CORE + _CLIP, []),
        ("core/norm", _CORE + _CLIP, []),
        ("core/shard", _CORE + _SHARD, ["made_up/core/shard/ops/table.yaml"]),
        ("all", _CORE + _CLIP + _PIPELINE + _SHARD, []),
    ]:
        _library_test(
            name = folder.replace("/", "_") + "_library_test",
            size = "small",
            data = data + ["engine_info/made_up.json", "made_up/__init__.original"],
            modules = _ROOT + modules,
            tags = ["l0"],
            target_under_test = "@made_up_engine//:" + folder,
        )
    _constraint_test(
        name = "constraint_test",
        size = "small",
        constraints = ["@absent_engine//:at_hand", "@made_up_engine//:at_hand"],
        tags = ["l0"],
    )
    _names_test(
        name = "names_test",
        size = "small",
        at_hand = at_hand,
        libraries = libraries,
        tags = ["l0"],
    )
