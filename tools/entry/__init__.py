"""What tools/bazel does before Bazel runs. Standard library only: no environment exists yet at that time."""
