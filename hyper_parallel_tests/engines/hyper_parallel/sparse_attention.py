"""Sparse attention: HyperParallel lays out the inputs of an accelerator's operators, and has none of its own."""

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["dsa_indexer", "dsa_indexer_loss", "dsa_sparse_attention"]

_LEFT_OUT = Unsupported("the library's DSA styles are for modules around operators that an accelerator alone has")

dsa_indexer = _LEFT_OUT
dsa_sparse_attention = _LEFT_OUT
dsa_indexer_loss = _LEFT_OUT
