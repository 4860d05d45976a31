"""Holds the test files to the project's rules by reading them; nothing of them is imported or run."""
