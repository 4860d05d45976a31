"""Stands for a fault catalogue; only its place in the build is looked at."""
