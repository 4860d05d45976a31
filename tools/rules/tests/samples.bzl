"""Targets that the tests of the rules look at and never run."""

load("//tools/rules:defs.bzl", "fault_test", "layer_test", "torchrun_test")

# buildifier: disable=unnamed-macro
def samples():
    """Declares them: every attribute of layer_test once, fault_tests, and a test that sees part of an engine."""
    layer_test(
        name = "l2_4card_sample",
        srcs = ["l2_sample_test.py"],
        cards = 4,
        data = ["samples.bzl"],
        deps = [":catalogue"],
        mechanisms = [
            "all_reduce",
            "saved_tensors_hooks",
        ],
        shard_count = 2,
        tags = [
            "manual",
            "nightly",
        ],
    )
    layer_test(
        name = "l2_4card_jobs_sample",
        srcs = ["l2_sample_test.py"],
        jobs = True,
        tags = ["manual"],
    )
    fault_test(
        name = "faults_2card_sample",
        srcs = ["l1_ranks_test.py"],
        catalogue = [":catalogue"],
        tags = ["manual"],
    )
    fault_test(
        name = "faults_2card_jobs_sample",
        srcs = ["l1_ranks_test.py"],
        catalogue = [":catalogue"],
        jobs = True,
        tags = ["manual"],
    )
    fault_test(
        name = "faults_2card_proofs_sample",
        proofs = {
            ":catalogue": ["l1_ranks_test.py"],
        },
        tags = ["manual"],
    )
    torchrun_test(
        name = "engine_sample",
        srcs = ["l2_sample_test.py"],
        by_domain = ["//hyper_parallel_tests/engines/torch_native:expectations"],
        cards = 1,
        domain = "rng",
        tags = ["manual"],
        deps = ["@made_up_engine//:core"],
    )
