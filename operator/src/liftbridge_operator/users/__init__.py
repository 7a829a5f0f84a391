"""Reconcile `LiftbridgeUser` resources: a Secret, access rules and quotas at brokers.

`decide.decide_user` is pure and decides the action; `reconciler.UserReconciler` observes, acts and
writes the status; `clusters.Clusters` reads each cluster once for all of its users.
"""
