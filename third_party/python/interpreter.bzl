"""The Python that repository rules run: `python3.11` on PATH, or what HYPER_PARALLEL_TESTS_INTERPRETER names."""

_VERSION = "3.11"

def find_python(rctx):
    """Finds the interpreter, and fails with what to do where there is none or a wrong one.

    Args:
      rctx: the context of the repository rule that needs it.

    Returns:
      The path of a CPython of the version that the locks are for.
    """
    found = rctx.getenv("HYPER_PARALLEL_TESTS_INTERPRETER") or rctx.which("python" + _VERSION)
    if not found:
        fail(("No python{version} on PATH, which the locked packages are for. Install it (Debian: python{version} and " +
              "python3-pip; pyenv: 'pyenv install {version}'), or name one with " +
              "--repo_env=HYPER_PARALLEL_TESTS_INTERPRETER=/path/to/python{version}.").format(version = _VERSION))
    return check_version(rctx, str(found))

def check_version(rctx, python):
    """Fails where an interpreter does not run or is not of the version that the locks are for.

    Args:
      rctx: the context of the repository rule that needs it.
      python: its path.

    Returns:
      Its path.
    """
    done = rctx.execute([python, "-I", "-c", "import sys; print('%s %d.%d' % ((sys.implementation.name,) + sys.version_info[:2]))"])
    if done.return_code:
        fail("{} does not run: {}\nName another with --repo_env=HYPER_PARALLEL_TESTS_INTERPRETER=/path/to/python{}.".format(
            python,
            done.stderr.strip() or "no such file",
            _VERSION,
        ))
    if done.stdout.strip() != "cpython " + _VERSION:
        fail(("{} is {}; expected cpython {}, which third_party/python/requirements_*.lock are for. Name one with " +
              "--repo_env=HYPER_PARALLEL_TESTS_INTERPRETER=/path/to/python{} (or HYPER_PARALLEL_TESTS_PYTHON for an existing environment).").format(
            python,
            done.stdout.strip(),
            _VERSION,
            _VERSION,
        ))
    return python
