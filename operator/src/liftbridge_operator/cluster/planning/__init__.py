"""Planner: decide the next action from an observation; pure, total, one action a pass.

`decide(observation, memory)` is the whole interface. This package uses neither types of Kubernetes
nor a clock nor a socket; times are arguments, in milliseconds. Each part of a cluster's life cycle
has a module of rules; `decide` evaluates the rules in order and takes the first answer.
"""
