"""Needed by all."""


class Mesh:
    """Cards in a grid."""
