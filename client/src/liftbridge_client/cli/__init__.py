"""The command `liftbridge`."""

from liftbridge_client.cli.app import main

__all__ = ["main"]
