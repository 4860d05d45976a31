"""Python stacks, cut to what a reader needs."""

from __future__ import annotations

import threading

from hyper_parallel_tests.harness.stacks import (
    by_signal,
    main_thread,
    of_another,
    of_this_process,
    readable,
)

# Above what a process id may be.
NO_PROCESS = 2**22 + 1

DUMP = """\
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/site/hyper_parallel_tests/harness/rank.py", line 10 in answer_probes
  File "/lib/threading.py", line 975 in run

Thread 0x00007f02 (most recent call first):
  File "/case/worker.py", line 3 in work
  File "/lib/threading.py", line 975 in run

Current thread 0x00007f03 (most recent call first):
  File "/site/torch/distributed/distributed_c10d.py", line 2600 in all_reduce
  File "/case/l1_topic_test.py", line 12 in test_case
  File "/site/_pytest/python.py", line 159 in pytest_pyfunc_call
  File "/site/pluggy/_callers.py", line 121 in _multicall

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


def test_readable():
    """The harness' own thread and the frames below a case are left out; the rest stays."""
    said = readable(DUMP)
    assert "Segmentation fault" in said
    assert "in work" in said
    assert "in test_case" in said
    assert "answer_probes" not in said
    assert "pytest_pyfunc_call" not in said
    assert "Extension modules" not in said


def test_main_thread():
    """The main thread is the last one, its frames innermost first."""
    assert main_thread(DUMP)[:2] == [
        "/site/torch/distributed/distributed_c10d.py:2600 in all_reduce",
        "/case/l1_topic_test.py:12 in test_case",
    ]


def test_of_another():
    """The dump of another process says whose threads they are, and so does what stands in its place."""
    assert "Thread 0x00007f02 of the sibling (most recent call first)" in of_another(DUMP, "the sibling")
    assert of_another("no Python stacks: it is dead", "rank 1") == "rank 1: no Python stacks: it is dead"


def test_by_signal(tmp_path):
    """Of a process that does not even write its stacks on a signal its state is told."""
    found = by_signal({"rank 1": (NO_PROCESS, tmp_path / "stacks")}, 0.1)
    assert found == {"rank 1": "no Python stacks: the process is gone"}


def test_no_stacks():
    """A text that is no dump stays as it is, and has no main thread."""
    assert readable("killed before it could say a word\n") == "killed before it could say a word"
    assert main_thread("") == []


def test_carrying_frames_alone():
    """A dump of nothing but carrying frames is not cut to nothing."""
    dump = 'Thread 0x01 (most recent call first):\n  File "/site/_pytest/runner.py", line 1 in runtestprotocol\n'
    assert "runtestprotocol" in readable(dump)


def test_of_this_process():
    """A process can tell its own stacks: all threads but the one that tells, by name, the main thread last."""
    told: list[str] = []
    teller = threading.Thread(target=lambda: told.append(of_this_process()), name="teller")
    done = threading.Event()
    worker = threading.Thread(target=done.wait, name="worker")
    worker.start()
    teller.start()
    teller.join()
    done.set()
    worker.join()
    assert "[worker]" in told[0]
    assert "[teller]" not in told[0]
    assert any("in test_of_this_process" in frame for frame in main_thread(told[0]))
