"""Only read for the version."""

from setuptools import setup

setup(name="made_up", version="1.2")
