"""PyTorch's own distributed stack, and a plain reference implementation where PyTorch has nothing."""


def version() -> str:
    """PyTorch's version, without the build suffix."""
    import torch

    return torch.__version__.partition("+")[0]
