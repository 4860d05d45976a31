"""All catalogues together: each loads beside the others, and no id stands in them twice."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

from hyper_parallel_tests.faults import catalogue, catalogues, find


def test_no_id_is_declared_twice():
    """Read from the sources: modules that share an id do not load, and of two in one module only the later is kept."""
    homes = defaultdict(list)
    for name in catalogues():
        source = Path(find_spec(f"hyper_parallel_tests.faults.{name}").origin)
        for id in re.findall(r'^    id="(.+)",$', source.read_text(), re.MULTILINE):
            homes[id].append(name)
    assert homes
    assert {id: names for id, names in homes.items() if len(names) > 1} == {}


def test_faults_are_found_by_their_ids_alone():
    """A run with one fault names no catalogue: all of them are loaded, and it is the fault that its module holds."""
    faults = [one for name in catalogues() for one in catalogue(name)]
    # Each search goes through all modules.
    for one in (faults[0], faults[-1]):
        assert find(one.id) == one
