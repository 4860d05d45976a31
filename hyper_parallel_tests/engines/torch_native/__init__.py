"""PyTorch's own distributed stack, and a plain reference implementation where PyTorch has nothing."""

# Importing it leaves torch as it is, so that a baseline may be computed beside it.
PATCHES_TORCH = False


def version() -> str:
    """PyTorch's version, without the build suffix."""
    import torch

    return torch.__version__.partition("+")[0]
