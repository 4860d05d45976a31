"""A quality protection net for distributed training on PyTorch."""
