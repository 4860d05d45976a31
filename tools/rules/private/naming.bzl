"""What a test target's name and package say about it.

Pure functions of strings, so that they can be tested: a macro turns `problem` into fail().
"""

LAYERS = ["l0", "l1", "l2", "l3", "l4"]

# What a platform or a worker advertises; a count in between would never find a place on a farm.
CARD_COUNTS = [1, 2, 4, 8]

_DOMAINS = "hyper_parallel_tests/domains/"
_PRODUCT = "hyper_parallel_tests/"
_MEETINGS = ["hyper_parallel_tests/interactions", "hyper_parallel_tests/endurance"]

def parse_name(name, kinds = LAYERS):
    """Reads `<kind>`, `<kind>_<n>card` or `<kind>_<n>card_<suffix>`.

    Args:
      name: the target's name.
      kinds: what may stand first.

    Returns:
      struct(kind, cards, suffix, problem): cards is 1 where the name gives none; problem is a sentence or None.
    """
    kind, _, rest = name.partition("_")
    count, _, suffix = rest.partition("_")
    digits = count.removesuffix("card")
    forms = "<kind>, <kind>_<n>card or <kind>_<n>card_<suffix> with <kind> one of {} and <n> one of {}".format(
        ", ".join(kinds),
        ", ".join([str(n) for n in CARD_COUNTS]),
    )
    problem = "the name {} is not of the form {}".format(repr(name), forms)
    if kind not in kinds or name.endswith("_"):
        return struct(cards = 0, kind = kind, problem = problem, suffix = suffix)
    if not rest:
        return struct(cards = 1, kind = kind, problem = None, suffix = "")
    if not count.endswith("card") or digits not in [str(n) for n in CARD_COUNTS]:
        return struct(cards = 0, kind = kind, problem = problem, suffix = suffix)
    return struct(cards = int(digits), kind = kind, problem = None, suffix = suffix)

def full_name(name, parsed):
    """The name with its card count: a bare `l1` is left free for the suite of the package's l1 tests."""
    return name if parsed.kind != name else "{}_{}card".format(name, parsed.cards)

def cards_problem(name, parsed, cards):
    """Checks the number of cards.

    Args:
      name: the target's name.
      parsed: what parse_name made of it.
      cards: the attribute, None where it is not given.

    Returns:
      Why it cannot be right, or None.
    """
    if parsed.kind == "l0" and (parsed.cards != 1 or cards not in [None, 1]):
        return "{}: layer 0 runs in one process without communication, so it has one card; a test that needs more belongs to l1".format(
            repr(name),
        )
    if cards != None and cards != parsed.cards:
        return "cards = {} but the name {} says {}: give one of them, for example {}_{}card".format(
            cards,
            repr(name),
            parsed.cards,
            parsed.kind,
            cards,
        )
    return None

def jobs_problem(name, parsed, jobs):
    """Checks that the layer of a target may start jobs.

    Args:
      name: the target's name.
      parsed: what parse_name made of it.
      jobs: whether its cases start jobs.

    Returns:
      Why they cannot, or None.
    """
    if jobs and parsed.kind == "l0":
        return "{}: layer 0 runs in one process without communication, so it starts no jobs; a test that does belongs to l1".format(
            repr(name),
        )
    return None

def srcs_problem(name, kinds, srcs):
    """Checks the test files' names.

    Args:
      name: the target's name.
      kinds: the layers that the files may be of.
      srcs: labels or file names.

    Returns:
      Why they cannot be right, or None.
    """
    if not srcs:
        return "{} has no srcs: name its test files".format(repr(name))
    wrong = [src for src in srcs if not is_test_file(src, kinds)]
    if wrong:
        return "{}: {} not called {}_<topic>_test.py. A file belongs to the target of its layer: rename it, or move it to that target".format(
            repr(name),
            ", ".join(wrong) + (" is" if len(wrong) == 1 else " are"),
            "|".join(kinds),
        )
    return None

def is_test_file(src, kinds):
    """Whether a label or file name is a test file of one of the layers `kinds`."""
    file = src.split("/")[-1].split(":")[-1]
    return file.endswith("_test.py") and file.split("_")[0] in kinds and len(file.split("_")) > 2

def domain_of(package):
    """Says what a package is about.

    Args:
      package: the package's path.

    Returns:
      The capability; for a package outside the domains its first folder below the product.
    """
    for prefix in [_DOMAINS, _PRODUCT]:
        if package.startswith(prefix):
            return package.removeprefix(prefix).split("/")[0]
    return package.split("/")[0] or "root"

def is_domain(package):
    """Whether a package is a capability's, so that its tests see the engine's part for it."""
    return package.startswith(_DOMAINS)

def judges_engines(package):
    """Whether a package's tests hold engines to contracts: a capability's, or one where capabilities meet."""
    return is_domain(package) or package in _MEETINGS

def derived_tags(kind, cards, domain, mechanisms):
    """The tags that filters, the scheduler and the report go by.

    Args:
      kind: the layer, or "faults".
      cards: ranks, and so processes, at the same time.
      domain: see domain_of.
      mechanisms: PyTorch mechanisms that the target leans on.

    Returns:
      A list of tags. The combined one stands for "l1 and 2card", which --test_tag_filters cannot express.
    """
    cardinal = "{}card".format(cards)
    return [kind, cardinal, "{}-{}".format(kind, cardinal), domain] + [
        "mech_" + mechanism
        for mechanism in mechanisms
    ] + [
        "cpu:{}".format(cards),
        "resources:card:{}".format(cards),
    ]
