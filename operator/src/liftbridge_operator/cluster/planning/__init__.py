"""Planner: decide the next action from an observation; pure, total, one action a pass.

`decide(observation, memory)` is the whole interface. Nothing in this package knows Kubernetes'
types, a clock or a socket; times are arguments, in milliseconds. Each story of a cluster's life
has a module; `decide` asks them in turn and takes the first answer.
"""
