"""Pipelines: stages, schedules and micro-batches.

`simulator` judges a table (`actions`: what it consists of, and what can be wrong with it), and `plans` has what
schedules promise; no engine has a part in them. Real runs begin with `kinds` (the schedules, and which stages each rank
has) and `setting` (a pipeline over all ranks, and its training) of `networks` or `structures`. What a rank really does
is seen by `observation`, held to the plan by `comparison`, and asserted by `runs`.
"""
