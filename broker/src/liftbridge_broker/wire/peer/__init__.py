"""Messages between the brokers of a cluster, and the frames that carry them."""
