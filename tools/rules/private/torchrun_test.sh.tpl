#!/usr/bin/env bash
# Starts the harness' launcher with nothing to import from but the runfiles and the environment's packages.
set -euo pipefail

runfiles="${TEST_SRCDIR:-${RUNFILES_DIR:-$0.runfiles}}"
[[ "$runfiles" == /* ]] || runfiles="$PWD/$runfiles"
workspace="$runfiles"/%{workspace}
import_path="$workspace"
# A remote worker leaves source directories out of the runfiles tree; they are among the action's inputs all the same.
for directory in %{directories}; do
  place="$runfiles/$directory"
  [[ -e "$place" ]] || place="${runfiles%%/bazel-out/*}/external/$directory"
  import_path+=":$place"
done
import_paths=%{import_paths}
import_path+="${import_paths:+:$import_paths}"

executable_paths=%{executable_paths}
export PATH="${executable_paths:+$executable_paths:}$PATH"
export PYTHONPATH="$import_path"
export HOME="${TEST_TMPDIR:-${HOME:-/tmp}}"
unset PYTHONHOME PYTHONSTARTUP PYTHONINSPECT PYTHONBREAKPOINT

cd "$workspace"
exec %{interpreter} -S -s -P -m hyper_parallel_tests.harness.launch %{arguments} "$@"
