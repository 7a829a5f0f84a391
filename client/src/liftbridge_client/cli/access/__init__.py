"""`liftbridge access`: the access rules of a cluster."""
