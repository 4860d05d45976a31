"""Reading contracts.toml and expectations: what is accepted and refused, and what is expected broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.contract_check.samples import SCENARIO
from hyper_parallel_tests.harness.contracts import (
    ContractError,
    expected_broken,
    layer_of,
    load_contracts,
    load_expectations,
    plan_cases,
)

CONTRACT = """
[[contract]]
id = "COL-1-03"
layer = "l1"
statement = "P2P matches by source and order."
source = "S0 1.2"
mechanisms = ["isend_irecv"]
"""

BROKEN = """
[[broken]]
contract = "COL-1-03"
engine_version = ">=2.12,<2.14"
sentence = "A ring of two deadlocks."
reproduction = "_broken_ring.py"
"""


def tree(path: Path, **domains: str) -> Path:
    """A package with one contracts.toml a domain."""
    for name, text in domains.items():
        folder = path / "domains" / name
        folder.mkdir(parents=True)
        (folder / "contracts.toml").write_text(text)
    return path


def engine(path: Path, text: str) -> Path:
    """An engine's folder with expectations of one domain."""
    (path / "expectations").mkdir()
    (path / "expectations" / "collectives.toml").write_text(text)
    return path


@pytest.mark.parametrize(
    ("contract_id", "layer"),
    [
        ("COL-0-01", "l0"),
        ("COL-1-03", "l1"),
        ("AP-2-01", "l2"),
        ("FSDP-L1-01", "l1"),
        ("FSDP-L1-13", "l1"),
        ("FSDP-L2-01", "l2"),
        ("FSDP-L2-02", "l2"),
        ("FSDP-L2-03", "l3"),
        ("FSDP-L2-06", "l3"),
        ("FSDP-L2-07", "l2"),
        ("FSDP-L2-08", "l2"),
        ("FSDP-L2-10", "l3"),
        ("FSDP-L3-01", "l2"),
        ("FSDP-L3-03", "l3"),
        ("FSDP-L3-06", "l2"),
        ("IX-23", "l3"),
        ("EN-06", "l4"),
    ],
)
def test_the_id_tells_the_layer(contract_id, layer):
    """Ids carry their layer; the FSDP plan's levels are translated."""
    assert layer_of(contract_id) == layer


@pytest.mark.parametrize(
    "contract_id", ["", "COL-1", "COL-5-01", "col-1-01", "FSDP-L1-14", "FSDP-L4-01", "XX-01", "COL-1-003"]
)
def test_an_id_of_no_known_form_is_an_error(contract_id):
    """Nothing is guessed."""
    with pytest.raises(ContractError, match="no contract id"):
        layer_of(contract_id)


def test_contracts_are_read_whole(tmp_path):
    """Every field is as written, in order of the files."""
    found = load_contracts(tree(tmp_path, b=CONTRACT, a=CONTRACT.replace("COL-1-03", "AC-1-01")))
    assert list(found) == ["AC-1-01", "COL-1-03"]
    one = found["COL-1-03"]
    assert (one.layer, one.source, one.mechanisms) == ("l1", "S0 1.2", ("isend_irecv",))
    assert one.statement == "P2P matches by source and order."
    assert one.path == tmp_path / "domains/b/contracts.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONTRACT + CONTRACT, "COL-1-03 is already in domains/a/contracts.toml"),
        (CONTRACT.replace('layer = "l1"', 'layer = "l7"'), "unknown layer 'l7'"),
        (CONTRACT.replace('layer = "l1"', 'layer = "l2"'), "of layer l1 by its id, but says l2"),
        (CONTRACT.replace("COL-1-03", "COL-103"), "no contract id"),
        (CONTRACT.replace('source = "S0 1.2"\n', ""), "source must be a text"),
        (CONTRACT.replace('"P2P matches by source and order."', '" "'), "statement must be a text"),
        (CONTRACT.replace('["isend_irecv"]', '"isend_irecv"'), "mechanisms must be a list"),
        (CONTRACT.replace("isend_irecv", "isend/irecv"), "mechanisms must be a list of lower_case names"),
        (CONTRACT + 'note = "x"\n', "unknown key 'note'"),
        (
            CONTRACT.replace("[[contract]]", "[[contracts]]"),
            "expected only [[contract]] entries, found contracts",
        ),
        (
            CONTRACT.replace("[[contract]]", "[contract]"),
            "expected only [[contract]] entries, found a [contract]",
        ),
        ("contract = [1]", "expected only [[contract]] entries, found contract = [1]"),
        ("contract = 1", "expected only [[contract]] entries, found contract = 1"),
        ("[[contract]", "no valid TOML"),
    ],
)
def test_a_bad_contract_is_an_error(tmp_path, text, said):
    """The message names the file and what is wrong."""
    with pytest.raises(ContractError) as caught:
        load_contracts(tree(tmp_path, a=text))
    assert said in str(caught.value)
    assert "domains/a/contracts.toml" in str(caught.value)


def registry(path: Path, text: str) -> Path:
    """A package with one registry of scenarios."""
    (path / "interactions").mkdir()
    (path / "interactions" / "registry.toml").write_text(text)
    return path


def test_a_scenario_is_a_contract(tmp_path):
    """Its id tells the layer; what its targets are made of is read too."""
    one = load_contracts(registry(tmp_path, SCENARIO))["IX-07"]
    assert (one.layer, one.source, one.mechanisms) == ("l3", "S0 4.4", ("checkpoint",))
    assert (one.name, one.cards, one.faults) == ("fsdp_recomputation", 4, "interactions_recomputation")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cards = 4", "cards = 2", "cards must be the product of mesh, 4, found 2"),
        ("mesh = { dp = 2, tp = 2 }", 'mesh = { dp = "2" }', "mesh must be a table of sizes"),
        ('["Loss, norm and tensors are the single card\'s."]', "[]", "assertions must be a list of sentences"),
        ("risks = [", "risk = [", "unknown key 'risk'"),
        ('"fsdp_recomputation"', '"FSDP + AC"', "name must be a lower_case name"),
        ('["mlp"]', '"mlp"', "models must be a list of lower_case names"),
        ('"IX-07"', '"IX-7"', "no contract id"),
        ("[[scenario]]", "[[contract]]", "expected only [[scenario]] entries, found contract"),
    ],
)
def test_a_bad_scenario_is_an_error(tmp_path, old, new, said):
    """The message names the file and what is wrong."""
    assert old in SCENARIO
    with pytest.raises(ContractError) as caught:
        load_contracts(registry(tmp_path, SCENARIO.replace(old, new)))
    assert said in str(caught.value)
    assert "interactions/registry.toml" in str(caught.value)


def test_a_file_in_another_encoding_is_an_error(tmp_path):
    """TOML is UTF-8; the message names the file and the place."""
    root = tree(tmp_path, a=CONTRACT)
    (root / "domains/a/contracts.toml").write_bytes(CONTRACT.replace("order", "Größe").encode("latin-1"))
    with pytest.raises(ContractError, match=r"domains/a/contracts.toml: no valid TOML: .*utf-8.*position"):
        load_contracts(root)


def test_the_plan_has_its_cases_of_every_level():
    """Thirteen, ten and six of FSDP, scenarios and long runs; their ids tell the layers that they are listed with."""
    cases = plan_cases()
    kinds = ("FSDP-L1-", "FSDP-L2-", "FSDP-L3-", "IX-", "EN-")
    assert [sum(one.startswith(kind) for one in cases) for kind in kinds] == [13, 10, 6, 23, 6]
    assert {one: layer_of(one) for one in cases} == cases


def test_an_id_in_two_domains_is_an_error(tmp_path):
    """The second place names the first."""
    with pytest.raises(ContractError, match="domains/b/contracts.toml: COL-1-03 is already in domains/a"):
        load_contracts(tree(tmp_path, a=CONTRACT, b=CONTRACT))


def test_all_faults_of_all_files_are_told(tmp_path):
    """One run tells everything that is to be corrected."""
    bad = CONTRACT.replace('"l1"', '"l2"')
    with pytest.raises(ContractError) as caught:
        load_contracts(tree(tmp_path, a=bad, b=bad.replace("COL", "AC")))
    assert len(str(caught.value).splitlines()) == 2


def test_expectations_are_read_whole(tmp_path):
    """Every field is as written; an engine without such files expects everything to work."""
    (one,) = load_expectations(engine(tmp_path, BROKEN))
    assert (one.contract, one.case, one.sentence) == ("COL-1-03", "", "A ring of two deadlocks.")
    assert one.reproduction == tmp_path / "expectations" / "_broken_ring.py"
    assert one.path == tmp_path / "expectations" / "collectives.toml"
    assert not one.cards
    assert load_expectations(tmp_path / "elsewhere") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BROKEN + 'case = "a_test.py::test_b"\n', "a contract, a case or a list of cases, found contract and case"),
        (BROKEN.replace('contract = "COL-1-03"\n', ""), "a contract, a case or a list of cases, found neither"),
        (BROKEN.replace(">=2.12,<2.14", "about 2.13"), "engine_version must be like"),
        (BROKEN.replace("_broken_ring.py", "ring.py"), "reproduction must be a script beside it"),
        (BROKEN.replace("_broken_ring.py", "../_broken_ring.py"), "reproduction must be a script beside it"),
        (BROKEN.replace('contract = "COL-1-03"', "cases = []"), "cases must be a list of node ids, found []"),
        (BROKEN.replace('contract = "COL-1-03"', 'cases = ["a_test.py::test_b", 1]'), "cases must be a list"),
        (BROKEN.replace('sentence = "A ring of two deadlocks."\n', ""), "sentence must be a text"),
        (BROKEN + "since = 1\n", "unknown key 'since'"),
        *[(BROKEN + f"cards = {one}\n", "cards must be a number") for one in ("0", "[]", "[2, -4]", '"2"', "true")],
        (BROKEN.replace("[[broken]]", "[[expected]]"), "expected only [[broken]] entries"),
    ],
)
def test_a_bad_expectation_is_an_error(tmp_path, text, said):
    """The message says what is wrong."""
    with pytest.raises(ContractError) as caught:
        load_expectations(engine(tmp_path, text))
    assert said in str(caught.value)


RING = "hyper_parallel_tests/domains/collectives/l1_p2p_test.py::test_ring"


@pytest.mark.parametrize(
    ("entry", "nodeid", "contracts", "version", "expected"),
    [
        ('contract = "COL-1-03"', RING, ["COL-1-03"], "2.13.0", True),
        ('contract = "COL-1-03"', RING, ["COL-1-02", "COL-1-03"], "2.13.0+cpu", True),
        ('contract = "COL-1-03"', RING, ["COL-1-03"], "2.13.0a0+git1", True),
        ('contract = "COL-1-03"', RING, ["COL-1-02"], "2.13.0", False),
        ('contract = "COL-1-03"', RING, ["COL-1-03"], "2.14.0", False),
        ('contract = "COL-1-03"', RING, ["COL-1-03"], "2.11.1", False),
        ('case = "collectives/l1_p2p_test.py::test_ring"', RING, [], "2.13.0", True),
        ('case = "collectives/l1_p2p_test.py::test_ring"', RING + "[forward]", [], "2.13.0", True),
        ('case = "collectives/l1_p2p_test.py::test_ring[forward]"', RING + "[forward]", [], "2.13.0", True),
        ('case = "collectives/l1_p2p_test.py::test_ring[forward]"', RING + "[backward]", [], "2.13.0", False),
        ('case = "collectives/l1_p2p_test.py::test_ring"', RING + "_of_four", [], "2.13.0", False),
        ('case = "collectives/l1_p2p_test.py::test_ring[*ward-*]"', RING + "[backward-even]", [], "2.13.0", True),
        ('case = "collectives/l1_p2p_test.py::test_ring[*ward-*]"', RING + "[backward]", [], "2.13.0", False),
        ('case = "collectives/l1_p2p_test.py::test_*"', RING + "[backward]", [], "2.13.0", True),
        ('case = "tives/l1_p2p_test.py::test_ring"', RING, [], "2.13.0", False),
        (f'cases = ["a_test.py::test_b", "{RING}"]', RING, [], "2.13.0", True),
    ],
)
def test_expected_broken_goes_by_case_contract_and_version(tmp_path, entry, nodeid, contracts, version, expected):
    """A case is expected broken where an entry names it, or a contract that it cites, for this version."""
    expectations = load_expectations(engine(tmp_path, BROKEN.replace('contract = "COL-1-03"', entry)))
    found = expected_broken(expectations, nodeid, contracts, version, cards=2)
    assert (found is not None) is expected


@pytest.mark.parametrize(
    ("said", "on"), [("", {1, 2, 4}), ("cards = 2\n", {2}), ("cards = [1, 4]\n", {1, 4})], ids=["any", "one", "several"]
)
def test_expected_broken_goes_by_cards(tmp_path, said, on):
    """An entry speaks of the numbers of cards that it names, of any where it names none."""
    expectations = load_expectations(engine(tmp_path, BROKEN + said))
    assert {cards for cards in (1, 2, 4) if expected_broken(expectations, RING, ["COL-1-03"], "2.13.0", cards)} == on
