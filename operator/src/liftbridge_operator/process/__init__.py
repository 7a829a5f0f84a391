"""The process around the reconcilers: settings, log, queue, Lease, watches, probes, metrics.

An event of an object only puts a key into the queue; a reconciler then reads the present state and
does one thing. Nothing here decides anything about a cluster.
"""
