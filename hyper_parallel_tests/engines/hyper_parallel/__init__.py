"""HyperParallel as an engine: the real library, in whichever of its two API eras it comes."""

# Importing it replaces what backward hooks of modules run through, for every module of the process.
PATCHES_TORCH = True


def version() -> str:
    """The library's version, and the revision where the checkout tells it."""
    from third_party.engines.describe import installed_version

    return installed_version("hyper_parallel")
