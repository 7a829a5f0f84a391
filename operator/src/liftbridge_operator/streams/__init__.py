"""`Stream` resources: one stream of a cluster each, created, kept, handed over, let go.

`decide.decide_stream` is pure and says what to do; `reconciler.StreamReconciler` looks, does it and
writes the status; `feed.StreamFeed` looks at each cluster once for all of its streams.
"""
