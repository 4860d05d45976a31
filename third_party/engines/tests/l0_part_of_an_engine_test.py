"""What a test sees that depends on one library of an engine: here the made-up engine's pipeline."""

from __future__ import annotations

import importlib

import pytest

from third_party.engines.describe import installed_version


def test_what_the_library_needs_is_there():
    """The stage has its mesh, by way of the engine's root."""
    root, stage = importlib.import_module("made_up"), importlib.import_module("made_up.core.pipeline.stage")
    assert isinstance(stage.Stage().mesh, root.Mesh)
    assert root.Stage is stage.Stage


def test_other_folders_are_not():
    """So that a change in them cannot re-run this test."""
    with pytest.raises(
        ImportError, match="made_up.clip lies in made_up.core.clip.grads, which this test does not depend on"
    ):
        importlib.import_module("made_up").clip  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("made_up.core.shard")


def test_the_version_is_at_hand():
    """So that expectations can go by it."""
    assert installed_version("made_up") == "1.2"
