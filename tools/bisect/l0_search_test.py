"""The search over real histories: it ends at the revision that broke the contract, or says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bisect.history import GitError, History
from tools.bisect.repositories import Repository
from tools.bisect.search import Answer, EndsAreWrong, NoAnswer, Survey, search
from tools.report.results import Case

GOOD, BAD, ABSENT, UNBUILT = "a=passed", "a=assertion", "a=not-offered", ""


def survey(tree: Path) -> Survey:
    """What the file in a revision says that the cases do."""
    words = (tree / "state").read_text().split()
    pairs = dict(word.split("=") for word in words if "=" in word)
    cases = {
        name: Case(name, verdict, headline=f"{verdict} of {name}", contracts=("C",)) for name, verdict in pairs.items()
    }
    return Survey(cases, "" if cases else "it cannot be built")


@pytest.fixture
def repository(tmp_path) -> Repository:
    return Repository(tmp_path / "engine")


class Searched:
    """A search from the first to the last of some revisions."""

    def __init__(self, repository: Repository, good: str, bad: str, tree: Path, **given: bool) -> None:
        self.lines: list[str] = []
        tree.mkdir()
        history = History(repository.path, tree)
        ends = history.commit(good), history.commit(bad)
        history.check_order(*ends)
        self.answer: Answer = search(history, survey, *ends, tell=self.lines.append, **given)


def searched(repository: Repository, tmp_path: Path, *states: str, **given: bool) -> tuple[Searched, list[str]]:
    """A search over revisions of these states in a row, and their ids."""
    ids = [repository.commit(state, f"number {number}") for number, state in enumerate(states)]
    return Searched(repository, ids[0], ids[-1], tmp_path / "tree", **given), ids


@pytest.mark.parametrize("first", range(1, 7))
def test_the_first_bad_revision_is_found(repository, tmp_path, first):
    """Wherever it is, next to the ends too; the answer has what a person wants to know of it."""
    found, ids = searched(repository, tmp_path, *[GOOD] * first, *[BAD] * (7 - first))
    commit = found.answer.commit
    assert (commit.id, commit.author, commit.date[:10], commit.subject) == (
        ids[first],
        "Ada",
        "2026-02-01",
        f"number {first}",
    )
    assert [case.headline for case in found.answer.cases.values()] == ["assertion of a"]


@pytest.mark.parametrize("verdict", ["assertion", "error", "hang", "crash", "expected-broken"])
def test_a_known_defect_is_a_defect(repository, tmp_path, verdict):
    """What the expectations hide from a run's colour is what is searched for."""
    found, ids = searched(repository, tmp_path, GOOD, GOOD, f"a={verdict}")
    assert found.answer.commit.id == ids[2]


def test_the_ends_come_first_and_each_step_is_told(repository, tmp_path):
    """A search that would be in vain ends after two runs; progress says what was found, what it cost, what is left."""
    found, ids = searched(repository, tmp_path, GOOD, GOOD, BAD, BAD)
    assert found.lines[0] == f"bad   {ids[3][:10]} 2026-02-01 number 3: 1 of 1 cases broken (0.0 s)"
    assert found.lines[1] == f"good  {ids[0][:10]} 2026-02-01 number 0: 1 of 1 cases hold (0.0 s)"
    assert found.lines[2].startswith("bad ")
    assert found.lines[3].endswith("number 1: 1 of 1 cases hold (0.0 s); 0 left, about 0 steps")
    assert len(found.lines) == 4


@pytest.mark.parametrize("left_out", [ABSENT, UNBUILT, "a=leak"])
def test_what_cannot_be_judged_is_left_out(repository, tmp_path, left_out):
    """A revision without the feature or without a build is neither good nor bad."""
    found, ids = searched(repository, tmp_path, GOOD, GOOD, left_out, GOOD, BAD, BAD)
    assert found.answer.commit.id == ids[4]


def test_only_what_cannot_be_judged_is_left(repository, tmp_path):
    """Where the answer is hidden among such revisions they are named, with the one after them."""
    with pytest.raises(NoAnswer, match=r"(?s)among\n.*number 1\n.*number 2|number 2\n.*number 1"):
        searched(repository, tmp_path, GOOD, UNBUILT, BAD)


def test_only_cases_that_held_tell(repository, tmp_path):
    """A case that came with a feature and never held is not what the contract lost."""
    new = "a=passed b=assertion"
    found, ids = searched(repository, tmp_path, "a=passed b=not-offered", new, new, "a=crash b=assertion")
    assert found.answer.commit.id == ids[3]
    assert list(found.answer.cases) == ["a"]


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (BAD, BAD, "good revision .* number 0 is broken already: a: assertion of a"),
        (GOOD, GOOD, "bad revision .* number 2 is not bad: 1 of 1 cases hold"),
        (ABSENT, BAD, "good revision .* tells nothing .*: 1 not-offered: not-offered of a"),
        (GOOD, ABSENT, "bad revision .* is not bad: 1 not-offered"),
        (UNBUILT, BAD, "tells nothing .*: cannot be judged: it cannot be built"),
        (GOOD, UNBUILT, "is not bad: cannot be judged: it cannot be built"),
    ],
    ids=["good is bad", "bad is good", "good lacks it", "bad lacks it", "good is not built", "bad is not built"],
)
def test_ends_that_are_not_as_said(repository, tmp_path, first, last, message):
    """The search does not begin, and the message says what was found."""
    with pytest.raises(EndsAreWrong, match=f"(?s){message}"):
        searched(repository, tmp_path, first, GOOD, last)


@pytest.mark.parametrize("first", range(1, 5))
def test_the_mending_is_found_where_the_bad_revision_is_older(repository, tmp_path, first):
    """The answer is the first revision on which the case holds, told with what it did until then."""
    ids = [repository.commit(state, f"number {number}") for number, state in enumerate([BAD] * first + [GOOD] * 5)]
    found = Searched(repository, ids[-1], ids[0], tmp_path / "tree")
    assert (found.answer.commit.id, found.answer.mends) == (ids[first], True)
    assert [case.headline for case in found.answer.cases.values()] == ["assertion of a"]


def branched(repository: Repository) -> dict[str, str]:
    """A main line of three revisions into which a branch with a bad one is merged."""
    ids = {"good": repository.commit(GOOD, "good")}
    repository.git("checkout", "--quiet", "-b", "side")
    ids["side"] = repository.commit(BAD, "on the side")
    repository.git("checkout", "--quiet", "main")
    ids["main"] = repository.commit(GOOD + " ", "on the main line")
    ids["merge"] = repository.merge("side", BAD)
    ids["bad"] = repository.commit(BAD + " ", "after the merge")
    return ids


@pytest.mark.parametrize(("first_parent", "answer"), [(False, "side"), (True, "merge")])
def test_merges(repository, tmp_path, first_parent, answer):
    """The answer is the revision on the side branch or, on the main line alone, the merge that brought it."""
    ids = branched(repository)
    found = Searched(repository, ids["good"], ids["bad"], tmp_path / "tree", first_parent=first_parent)
    assert found.answer.commit.id == ids[answer]


def test_revisions_have_an_order(repository, tmp_path):
    """Good must lead to bad; where they are on two branches, the place where these part is named."""
    ids = branched(repository)
    for good, bad, message in [
        ("side", "main", "is not an ancestor.*they part at .* good, try that"),
        ("good", "good", "the same revision"),
    ]:
        with pytest.raises(GitError, match=message):
            Searched(repository, ids[good], ids[bad], tmp_path / f"{good}-{bad}")


def test_unknown_revision(repository, tmp_path):
    """A revision that the repository has not is named, an option in its place too."""
    repository.commit(GOOD)
    (tmp_path / "tree").mkdir()
    history = History(repository.path, tmp_path / "tree")
    for revision in ("v9", "--all"):
        with pytest.raises(GitError, match=f"there is no revision '{revision}'"):
            history.commit(revision)


@pytest.mark.parametrize("place", ["absent", "plain", "engine/inner"])
def test_no_repository(repository, tmp_path, place):
    """A folder without a history of its own is refused, one inside a checkout too."""
    (tmp_path / "plain").mkdir()
    (repository.path / "inner").mkdir()
    (tmp_path / "tree").mkdir()
    with pytest.raises(GitError, match="no such folder|not the top folder of a git checkout"):
        History(tmp_path / place, tmp_path / "tree")


def test_the_checkout_is_left_alone(repository, tmp_path):
    """Neither files nor refs nor settings of the engine's repository change, and what is edited there plays no part."""
    ids = [repository.commit(state) for state in (GOOD, BAD)]
    (repository.path / "state").write_text("edited")
    before = repository.files()
    found = Searched(repository, ids[0], ids[1], tmp_path / "tree")
    assert found.answer.commit.id == ids[1]
    assert repository.files() == before


@pytest.mark.parametrize("kind", ["git directory", "work tree"])
def test_kinds_of_repositories(repository, tmp_path, kind):
    """A bare git directory and a further work tree have the history too."""
    ids = [repository.commit(state) for state in (GOOD, BAD)]
    place = repository.path / ".git"
    if kind == "work tree":
        place = tmp_path / "further"
        repository.git("worktree", "add", "--quiet", "--detach", str(place), ids[0])
    repository.path = place
    assert Searched(repository, ids[0], ids[1], tmp_path / "tree").answer.commit.id == ids[1]


def test_the_callers_git_variables_do_not_count(repository, tmp_path, monkeypatch):
    """As in a hook of another repository, which sets GIT_DIR."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    found, ids = searched(repository, tmp_path, GOOD, BAD)
    assert found.answer.commit.id == ids[1]
