"""Tests of what a target's name and package say about it, and of the messages when they say nothing."""

load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load(
    "//tools/rules/private:naming.bzl",
    "cards_problem",
    "derived_tags",
    "domain_of",
    "full_name",
    "is_domain",
    "jobs_problem",
    "judges_engines",
    "parse_name",
    "srcs_problem",
)

def _good_names_test_impl(ctx):
    env = unittest.begin(ctx)
    for name, kind, cards, suffix in [
        ("l0", "l0", 1, ""),
        ("l1_2card", "l1", 2, ""),
        ("l1_8card_slow", "l1", 8, "slow"),
        ("l2_4card_very_slow", "l2", 4, "very_slow"),
        ("l4_1card", "l4", 1, ""),
    ]:
        parsed = parse_name(name)
        asserts.equals(env, (kind, cards, suffix, None), (parsed.kind, parsed.cards, parsed.suffix, parsed.problem), name)
    asserts.equals(env, 2, parse_name("faults_2card", ["faults"]).cards)
    return unittest.end(env)

def _bad_names_test_impl(ctx):
    env = unittest.begin(ctx)
    for name in ["", "fast", "l5", "l1_", "l1_slow", "l1_3card", "l1_card", "l1_2cards", "l1_2card_", "L1_2card", "l12card"]:
        problem = parse_name(name).problem
        asserts.true(env, problem != None, "{} was taken".format(repr(name)))
        asserts.true(env, repr(name) in problem and "<kind>_<n>card" in problem, problem)
    asserts.true(env, parse_name("l1_2card", ["faults"]).problem != None)
    return unittest.end(env)

def _full_name_test_impl(ctx):
    env = unittest.begin(ctx)
    for name, expected in {"l0": "l0_1card", "l1_2card": "l1_2card", "l1_2card_slow": "l1_2card_slow"}.items():
        asserts.equals(env, expected, full_name(name, parse_name(name)))
    return unittest.end(env)

def _cards_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, None, cards_problem("l1_2card", parse_name("l1_2card"), None))
    asserts.equals(env, None, cards_problem("l1_2card", parse_name("l1_2card"), 2))
    asserts.equals(
        env,
        "cards = 4 but the name \"l1_2card\" says 2: give one of them, for example l1_4card",
        cards_problem("l1_2card", parse_name("l1_2card"), 4),
    )
    asserts.true(env, "belongs to l1" in cards_problem("l0_2card", parse_name("l0_2card"), None))
    return unittest.end(env)

def _jobs_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, None, jobs_problem("l2_4card", parse_name("l2_4card"), True))
    asserts.equals(env, None, jobs_problem("faults", parse_name("faults", ["faults"]), True))
    asserts.equals(env, None, jobs_problem("l0", parse_name("l0"), False))
    asserts.true(env, "starts no jobs" in jobs_problem("l0", parse_name("l0"), True))
    return unittest.end(env)

def _srcs_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, None, srcs_problem("l1", ["l1"], ["l1_a_test.py", ":l1_b_test.py", "//x:l1_c_test.py"]))
    asserts.equals(env, None, srcs_problem("faults", ["l0", "l1"], ["l0_a_test.py", "l1_b_test.py"]))
    asserts.equals(env, "\"l1\" has no srcs: name its test files", srcs_problem("l1", ["l1"], []))
    for src in ["l2_a_test.py", "a_test.py", "l1_a.py", "l1_test.py", "test_l1_a.py"]:
        problem = srcs_problem("l1", ["l1"], ["l1_right_test.py", src])
        asserts.true(env, problem != None and src in problem and "l1_right" not in problem, src)
        asserts.true(env, "l1_<topic>_test.py" in problem, problem)
    return unittest.end(env)

def _domain_test_impl(ctx):
    env = unittest.begin(ctx)
    for package, domain, is_one, judges in [
        ("hyper_parallel_tests/domains/fully_shard", "fully_shard", True, True),
        ("hyper_parallel_tests/domains/rng/more", "rng", True, True),
        ("hyper_parallel_tests/interactions", "interactions", False, True),
        ("hyper_parallel_tests/harness/judging", "harness", False, False),
        ("tools/rules/tests", "tools", False, False),
        ("", "root", False, False),
    ]:
        asserts.equals(env, domain, domain_of(package))
        asserts.equals(env, is_one, is_domain(package))
        asserts.equals(env, judges, judges_engines(package))
    return unittest.end(env)

def _tags_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(
        env,
        ["l1", "2card", "l1-2card", "collectives", "mech_isend_irecv", "cpu:2", "resources:card:2"],
        derived_tags("l1", 2, "collectives", ["isend_irecv"]),
    )
    return unittest.end(env)

_good_names_test = unittest.make(_good_names_test_impl)
_bad_names_test = unittest.make(_bad_names_test_impl)
_full_name_test = unittest.make(_full_name_test_impl)
_cards_test = unittest.make(_cards_test_impl)
_jobs_test = unittest.make(_jobs_test_impl)
_srcs_test = unittest.make(_srcs_test_impl)
_domain_test = unittest.make(_domain_test_impl)
_tags_test = unittest.make(_tags_test_impl)

# buildifier: disable=unnamed-macro
def naming_tests():
    """Declares the tests of this file."""
    for name, rule in {
        "bad_names_test": _bad_names_test,
        "cards_test": _cards_test,
        "domain_test": _domain_test,
        "full_name_test": _full_name_test,
        "good_names_test": _good_names_test,
        "jobs_test": _jobs_test,
        "srcs_test": _srcs_test,
        "tags_test": _tags_test,
    }.items():
        rule(
            name = name,
            size = "small",
            tags = ["l0"],
        )
