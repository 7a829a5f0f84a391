"""A session is stopped in a bounded time, whatever its JVM does."""

import subprocess
from threading import Event
from types import SimpleNamespace

import pytest

from liftbridge_testkit.spark_sessions import stop_within


class Session:
    """A session whose JVM is a process that waits."""

    def __init__(self, stopped):
        self.jvm = subprocess.Popen(["sleep", "600"])
        self.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=self.jvm))
        self._stopped = stopped

    def stop(self):
        self._stopped.wait()


@pytest.fixture
def stopped():
    one = Event()
    yield one
    one.set()


def test_jvm_that_does_not_stop_is_killed(stopped):
    session = Session(stopped)
    assert not stop_within(session, 0.1)
    assert session.jvm.returncode == -9


def test_jvm_that_stops_is_left_alone(stopped):
    session = Session(stopped)
    stopped.set()
    assert stop_within(session, 60)
    assert session.jvm.poll() is None
    session.jvm.kill()
    session.jvm.wait()
