"""One half of a cycle of folders."""

from made_up.core.norm.total import total


def clip(values):
    return [value / total(values) for value in values]
