"""Imported by name."""
