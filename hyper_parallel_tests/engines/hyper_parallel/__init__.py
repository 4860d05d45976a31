"""HyperParallel as an engine: the real library, in whichever of its two API eras it comes."""


def version() -> str:
    """The library's version, and the revision where the checkout tells it."""
    from third_party.engines.describe import installed_version

    return installed_version("hyper_parallel")
