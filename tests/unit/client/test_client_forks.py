"""A client that another process opened."""

import os

import pytest

from liftbridge_client import UsageError
from liftbridge_client.core.forks import Opener


def test_nobody_but_who_opened_it_is_refused(monkeypatch):
    opener = Opener()
    opener.check()
    opener.open()
    opener.check()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert opener.is_other
    with pytest.raises(UsageError, match="but process -1 uses it: open the client after the fork"):
        opener.check()
