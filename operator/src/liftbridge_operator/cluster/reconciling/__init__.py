"""Reconcile `LiftbridgeCluster`: observe, decide, report the status, act once, requeue."""
