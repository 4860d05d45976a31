"""Needs norm, and norm needs it."""
