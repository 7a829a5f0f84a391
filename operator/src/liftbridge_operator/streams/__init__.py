"""Reconcile `Stream` resources: create, adopt, maintain, release and delete streams.

`decide.decide_stream` is pure and decides the action; `reconciler.StreamReconciler` observes, acts
and writes the status; `feed.StreamFeed` polls each cluster once for all of its streams.
"""
