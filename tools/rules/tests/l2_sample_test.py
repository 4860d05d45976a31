"""Stands for a test file; only its place in the build is looked at."""
