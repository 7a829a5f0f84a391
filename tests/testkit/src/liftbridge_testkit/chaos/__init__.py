"""Clusters of real brokers under load and random faults, and the check that nothing was lost.

`python -m liftbridge_testkit.chaos --runs 60 --seed 1` does 60 runs; `runs.py` says what a run is.
"""
