"""The process around the reconcilers: settings, log, queue, Lease, watches, probes, metrics.

What happens to an object only puts its key into the queue; a reconciler then looks at the world
anew and does one thing. Nothing here decides anything about a cluster.
"""
