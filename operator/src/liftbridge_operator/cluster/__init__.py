"""A `LiftbridgeCluster` and its brokers: observe, decide, report the status, act.

`observing` makes the observation of a pass, `planning` decides its one action, `rendering` renders
the objects, `reporting` the status, `acting` carries out the action; `reconciling` is the pass over
all of them. `brokers` is the port to the brokers. `certificates` decides when they are issued,
`x509` issues them, and `securing` keeps them in Secrets.
"""
