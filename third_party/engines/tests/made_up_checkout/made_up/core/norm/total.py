"""The other half."""


def total(values):
    from made_up.core.clip import grads

    return sum(values) or grads
