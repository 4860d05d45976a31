"""Needs clip, and clip needs it."""
