"""The process around the reconcilers: settings, log, queue, Lease, watches, probes, metrics.

A watch event of an object only adds a key to the queue; a reconciler then reads the present state
and does one action. This package decides nothing about a cluster.
"""
