"""What tests of the node share: one world each."""

import pytest

from liftbridge_testkit.node_world import NodeWorld


@pytest.fixture
def world() -> NodeWorld:
    """A node with nothing on it."""
    return NodeWorld()
