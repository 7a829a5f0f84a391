"""Consumers: members of incremental consumer groups, with `Client.consumers`."""
