"""From objects of Kubernetes and answers of brokers to one observation for the planner."""
