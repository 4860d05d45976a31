"""The reference networks: plain modules with weights and data that depend on a seed and on nothing else."""
