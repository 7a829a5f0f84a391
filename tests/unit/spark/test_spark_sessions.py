"""A session is stopped in a bounded time, whatever its JVM does."""

import subprocess
from threading import Event
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from liftbridge_client.cli.app import app
from pyspark_liftbridge import session as sessions
from pyspark_liftbridge.session import stop_within


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


def test_session_whose_jvm_has_ended_is_stopped(stopped):
    session = Session(stopped)
    session.jvm.kill()
    session.stop = lambda: 1 / 0
    assert stop_within(session, 60)
    session.jvm.wait()


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("--nothing", 2)])
def test_command_stops_sessions_with_executors_elsewhere(stopped, monkeypatch, word, code):
    session = Session(stopped)
    stopped.set()
    session.stop = session.jvm.kill
    monkeypatch.setattr(sessions, "_elsewhere", [session])
    assert CliRunner().invoke(app, ["spark", "verify", word]).exit_code == code
    assert session.jvm.wait() == -9
    assert sessions._elsewhere == []
