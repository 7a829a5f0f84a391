"""What the operator does next, decided from what it has seen: pure, total, one action a pass.

`decide(observation, memory)` is the whole of it. Nothing below here knows Kubernetes' types, a
clock or a socket; times are arguments, in milliseconds. Each story of a cluster's life has a
module; `decide` asks them in turn and takes the first answer.
"""
