"""//...:lN on Bazel's command line."""

from __future__ import annotations

import re
import shlex

import pytest

from tools.entry.report import EntryError
from tools.entry.rewrite import rewrite, rewrite_query


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("test //...:l0", "test //... --test_tag_filters=l0 --build_tests_only"),
        ("coverage //a/b/...:l3", "coverage //a/b/... --test_tag_filters=l3 --build_tests_only"),
        ("build //...:l4", "build //... --test_tag_filters=l4 --build_tests_only"),
        ("test ...:l0", "test ... --test_tag_filters=l0 --build_tests_only"),
        ("test //a/...:l0 //b/...:l0", "test //a/... //b/... --test_tag_filters=l0 --build_tests_only"),
        ("test //...:l0 //...:l1", "test //... --test_tag_filters=l0,l1 --build_tests_only"),
        ("test -k //...:l0", "test -k //... --test_tag_filters=l0 --build_tests_only"),
        ("test -c opt //...:l0 -j 4", "test -c opt //... -j 4 --test_tag_filters=l0 --build_tests_only"),
        ("test --keep_going //...:l0", "test --keep_going //... --test_tag_filters=l0 --build_tests_only"),
        ("test --nokeep_going ...:l0", "test --nokeep_going ... --test_tag_filters=l0 --build_tests_only"),
        (
            "test --//tools/rules:device=npu //...:l0",
            "test --//tools/rules:device=npu //... --test_tag_filters=l0 --build_tests_only",
        ),
        (
            "--output_base /o --batch test //...:l0",
            "--output_base /o --batch test //... --test_tag_filters=l0 --build_tests_only",
        ),
        (
            "test //...:l0 --test_arg //x/...:l1 --config npu",
            "test //... --test_arg //x/...:l1 --config npu --test_tag_filters=l0 --build_tests_only",
        ),
        ("test --nobuild_tests_only //...:l0", "test --nobuild_tests_only //... --test_tag_filters=l0"),
    ],
)
def test_a_layer_becomes_a_tag_filter(call, expected):
    """The folder stays a pattern, the layer a filter; nothing else of the call changes."""
    assert shlex.join(rewrite(shlex.split(call)).arguments) == expected


@pytest.mark.parametrize(
    ("given", "layers", "expected"),
    [
        ("2card", "l1", "l1-2card"),
        ("2card,4card,-nightly", "l1", "l1-2card,l1-4card,-nightly"),
        ("+2card", "l1 l2", "l1-2card,l2-2card"),
        ("-nightly", "l1", "l1,-nightly"),
        ("mech_all_gather", "l1", "mech_all_gather,-l0,-l2,-l3,-l4,-faults"),
        ("mech_all_gather,2card", "l1 l2", "mech_all_gather,2card,-l0,-l3,-l4,-faults"),
        ("", "l1", "l1"),
    ],
)
@pytest.mark.parametrize("form", ["--test_tag_filters={}", "--test_tag_filters {}"], ids=["word", "words"])
def test_the_users_filter_and_the_layer_both_hold(form, given, layers, expected):
    """Bazel ORs positive tags, so the user's filter and the layer are made one filter that means AND."""
    if not given and " " in form:
        given = "''"
    patterns = " ".join(f"//...:{layer}" for layer in layers.split())
    arguments = rewrite(shlex.split(f"test {form.format(given)} {patterns}")).arguments
    assert arguments == ["test", *form.format(expected).split(), "//...", "--build_tests_only"]


def test_the_last_filter_of_several_is_the_one_that_counts():
    """As in Bazel."""
    filters = ["--test_tag_filters=8card", "--test_tag_filters=2card"]
    arguments = rewrite(["test", *filters, "//...:l1"]).arguments
    assert arguments[1:3] == ["--test_tag_filters=8card", "--test_tag_filters=l1-2card"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("test -- //...:l0 -//a/...:l0", "test --test_tag_filters=l0 --build_tests_only -- //... -//a/..."),
        ("test -- //...:l0 -//a/...", "test --test_tag_filters=l0 --build_tests_only -- //... -//a/..."),
        ("test -- //...:l0 -//a/...:l1", "test --test_tag_filters=l0 --build_tests_only -- //..."),
        ("test -- //...:l0 //...:l1 -//...:l1", "test --test_tag_filters=l0 --build_tests_only -- //..."),
        ("test -- //... -//...:l4", "test --test_tag_filters=-l4 -- //..."),
        ("test -- //a/b:c //a/... -//a/...:l4", "test --test_tag_filters=-l4 -- //a/b:c //a/..."),
        (
            "test --test_tag_filters=2card -- //... -//...:l3 -//...:l4",
            "test --test_tag_filters=2card,-l3,-l4 -- //...",
        ),
    ],
)
def test_a_layer_can_be_left_out(call, expected):
    """After -- a pattern with a minus takes away: folders from a layer, or a layer from all folders."""
    assert shlex.join(rewrite(shlex.split(call)).arguments) == expected


@pytest.mark.parametrize("call", ["test //...:l5", "build //a/...:l10", "test -- //... -//...:l7"])
def test_a_layer_that_does_not_exist_is_named(call):
    """A mistyped layer is an error that lists the layers, not Bazel's word about wildcards."""
    with pytest.raises(EntryError, match="there is no layer .*l0, l1, l2, l3, l4"):
        rewrite(shlex.split(call))


@pytest.mark.parametrize(
    "call",
    [
        "test //a/...:l0 //b/...:l1",
        "test //...:l0 //b:c",
        "test //...:l0 //b/...",
        "test -- //... -//a/...:l1",
        "test -- //a/... //b/... -//a/...:l1",
        "test -- //...:l0 //...:l1 -//a/...:l1",
        "test -- //a/b/... -//a/bc/...:l1",
    ],
)
def test_what_one_call_cannot_say_is_an_error_that_tells_how_to_say_it(call):
    """A tag filter holds for all patterns of a call; what it cannot say must not run something else."""
    with pytest.raises(EntryError, match="one call cannot run .*suites"):
        rewrite(shlex.split(call))


def test_nothing_left_is_an_error():
    """Two layers asked for and both taken away again."""
    with pytest.raises(EntryError, match="nothing is left"):
        rewrite(["test", "--", "//...:l0", "//...:l1", "-//...:l0", "-//...:l1"])


@pytest.mark.parametrize(
    "call",
    [
        "",
        "version",
        "--batch",
        "test",
        "test //...",
        "test //pkg:l0",
        "test //pkg:l0 //...",
        "test //...:l0x",
        "test //...:all",
        "test --test_arg //...:l0",
        "test --test_arg=//...:l0 //a:b",
        "test --test_filter //...:l0 //a:b",
        "run //tool -- //...:l0",
        "aquery //...:l0",
        "help test",
        "query deps(//a:l0)",
        "query 'attr(tags, \"//...:l0\", //...)'",
        "query --universe_scope=//...:l0 //a",
        "--output_base test query //a",
    ],
)
def test_everything_else_passes_untouched(call):
    """The same words in the same order, and no claim to have changed something."""
    arguments = shlex.split(call)
    rewritten = rewrite(list(arguments))
    assert rewritten.arguments == arguments
    assert not rewritten.changed
    assert not rewritten.layers


@pytest.mark.parametrize("command", ["test", "coverage", "build"])
def test_the_layers_are_told_for_runs_of_tests(command):
    """Only test and coverage end with exit code 4 when no test matches."""
    layers = rewrite([command, "//...:l2", "//...:l1"]).layers
    assert layers == (() if command == "build" else ("l1", "l2"))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("//...:l0", "<l0 of //...>"),
        ("deps(//...:l0)", "deps(<l0 of //...>)"),
        ("//a/...:l1 + //b:c", "<l1 of //a/...> + //b:c"),
        ("//...:l0 except //a/b/...:l0", "<l0 of //...> except <l0 of //a/b/...>"),
        ("rdeps(...:l2, //a)", "rdeps(<l2 of ...>, //a)"),
        ("'//...:l0'", "'//...:l0'"),
        ('kind("//...:l0", //...:l1)', 'kind("//...:l0", <l1 of //...>)'),
        ("@other//...:l0", "@other//...:l0"),
        ("//...:l01", "//...:l01"),
        ("set(//a //b) + //...:l0", "set(//a //b) + <l0 of //...>"),
    ],
)
def test_a_query_names_the_tests_of_a_layer(expression, expected):
    """In any place of an expression, but not in quotes."""
    by_tag = r'attr(tags, "[\\[ ]\1[,\\]]", tests(\2))'
    assert rewrite_query(expression) == re.sub("<(l[0-4]) of (.*?)>", by_tag, expected)


def test_a_set_of_labels_cannot_hold_a_layer():
    """Bazel's set() takes labels only, and its own error would name an expression that nobody wrote."""
    with pytest.raises(EntryError, match="join"):
        rewrite_query("set(//a:b //...:l0)")


def test_query_words_are_rewritten_one_by_one():
    """The flags of query and their values stay as they are."""
    rewritten = rewrite(["cquery", "--output", "label", "//...:l0", "--notool_deps"])
    assert rewritten.changed
    assert rewritten.arguments[:3] == ["cquery", "--output", "label"]
    assert rewritten.arguments[3].startswith("attr(tags")
    assert rewritten.arguments[4] == "--notool_deps"
