"""Faults: how they are declared, found, put in and taken out."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from hyper_parallel_tests.faults import FaultDoesNotFit, Patch, apply, catalogue, fault, find
from hyper_parallel_tests.harness.tests.programs import calculator

CALCULATOR = calculator.__name__
DEMO = "hyper_parallel_tests.harness.tests.programs.demo_faults"


class Ancestor:
    def method(self) -> str:
        return "method"

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


class Heir(Ancestor):
    pass


@pytest.fixture
def reached() -> list[str]:
    return []


@pytest.fixture
def patch(reached: list[str]) -> Iterator[Patch]:
    """A patch that is undone at the end."""
    found = Patch("demo", 0, reached.append)
    yield found
    found.undo()


def test_function(patch, reached):
    """A function is replaced until the patch is undone; the replacement may call the original."""

    def make(original):
        def broken(numbers):
            patch.reached()
            return original(numbers) + 1

        return broken

    original = patch.replace(f"{CALCULATOR}:total", make, parameters=("numbers",))
    assert calculator.total((1, 2)) == 4
    assert reached == ["demo"]
    patch.undo()
    assert calculator.total is original


def test_around(patch, reached):
    """A function that stands in gets the original first, keeps its name and signature, and fits methods too."""

    @patch.around(f"{CALCULATOR}:total", parameters=("numbers",))
    def doubled(original, numbers):
        patch.reached()
        return 2 * original(numbers)

    @patch.around(f"{CALCULATOR}:total", parameters=("numbers",))
    def one_more(original, numbers):
        return original(numbers) + 1

    assert (calculator.total([1, 2]), reached) == (7, ["demo"])
    assert calculator.total.__name__ == "total"
    patch.undo()
    assert calculator.total([1, 2]) == 3


def test_at_the_end(patch):
    """What is to be done at the end is done once, after the replacements that came later are out."""
    seen = []
    original = calculator.total
    patch.at_the_end(lambda: seen.append(calculator.total is original))
    patch.replace(f"{CALCULATOR}:total", lambda inner: lambda numbers: inner(numbers) * 2)
    patch.undo()
    patch.undo()
    assert seen == [True]


def test_replacements_on_each_other(patch):
    """Two replacements of one target come out in the reverse order."""
    original = calculator.total
    patch.replace(f"{CALCULATOR}:total", lambda inner: lambda numbers: inner(numbers) * 2)
    patch.replace(f"{CALCULATOR}:total", lambda inner: lambda numbers: inner(numbers) + 1)
    assert calculator.total((1, 2)) == 7
    patch.undo()
    assert calculator.total is original


@pytest.mark.parametrize("owner", [Ancestor, Heir])
def test_methods(patch, owner):
    """Methods of all kinds are replaced as what they are, in the class that is named, and come out again."""
    before = dict(vars(owner))
    patch.replace(f"{__name__}:{owner.__name__}.method", lambda original: lambda self: original(self) + "!")
    patch.replace(f"{__name__}:{owner.__name__}.static", lambda original: lambda: original() + "!")
    patch.replace(f"{__name__}:{owner.__name__}.of_class", lambda original: lambda cls: original(cls) + "!")
    assert (Heir().method(), Heir.static(), Heir.of_class()) == ("method!", "static!", "Heir!")
    patch.undo()
    assert dict(vars(owner)) == before
    assert (Heir().method(), Heir.static(), Heir.of_class()) == ("method", "static", "Heir")


@pytest.mark.parametrize(
    ("target", "parameters", "says"),
    [
        ("no_colon", (), "not of the form"),
        ("hyper_parallel_tests.no_such_module:x", (), "no module"),
        (f"{CALCULATOR}:no_such_function", (), "has no no_such_function"),
        (f"{CALCULATOR}:total.no_such_part", (), "has no total.no_such_part"),
        (f"{CALCULATOR}:total", ("values",), "takes \\('numbers',\\)"),
        (f"{CALCULATOR}:total", ("numbers", "start"), "takes \\('numbers',\\)"),
    ],
)
def test_misfit(patch, target, parameters, says):
    """A target that is not as the fault knows it is an error that says what was found."""
    with pytest.raises(FaultDoesNotFit, match=says):
        patch.replace(target, lambda original: original, parameters=parameters)


def test_catalogue():
    """A catalogue lists its faults in the order of the file."""
    ids = [one.id for one in catalogue(DEMO)]
    assert ids[:3] == ["demo-off-by-one", "demo-hang", "demo-crash"]
    assert len(ids) == len(set(ids))


def test_unknown_fault():
    """An unknown id is told with the nearest known ones."""
    with pytest.raises(KeyError, match="demo-off-by-one"):
        find("demo-of-by-one", [DEMO])


def test_applied_on_its_ranks_only():
    """A fault is put in on the ranks that it is meant for."""
    for rank, wrong in [(0, False), (1, True)]:
        patch = apply("demo-wrong-rank", rank, lambda fault: None, [DEMO])
        assert (calculator.total((1, 2)) == 0) is wrong
        patch.undo()


declare = functools.partial(
    fault, id="demo-new", symptom="A sum is wrong.", capability="demo", layer="l1", must_fail=["DEMO-SUM"]
)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"layer": "l9"}, "layer 'l9'"),
        ({"must_fail": []}, "at least one contract"),
        ({"symptom": ""}, "needs a symptom"),
        ({"ranks": "some"}, 'ranks is "all", "any" or a list'),
        ({"applied_on": "any"}, 'applied_on is "all" or a list'),
    ],
)
def test_wrong_declaration(wrong, says):
    """A fault that says too little, or nonsense, is refused where it is declared."""
    with pytest.raises(ValueError, match=says):
        declare(**wrong)


def test_taken_id():
    """No two catalogues declare the same id."""
    catalogue(DEMO)
    with pytest.raises(ValueError, match="declared twice"):
        declare(id="demo-hang")(lambda patch: None)
