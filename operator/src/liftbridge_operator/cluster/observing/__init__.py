"""Build the planner's observation from objects of Kubernetes and answers of brokers."""
