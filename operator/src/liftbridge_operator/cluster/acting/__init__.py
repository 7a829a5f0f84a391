"""Carry out the planner's decisions by calls to the API server and to brokers."""
