"""The operator's planner against models of the API server, the kubelets and the broker cluster.

The planner is the shipped one. A schedule follows from a seed: changes by the user, faults, and two
operators that are killed and paused between any two calls. `python -m
liftbridge_testkit.operator_sim` runs ranges.
"""
