"""The passes over a `LiftbridgeCluster`: look, decide, say, do one thing, come again."""
