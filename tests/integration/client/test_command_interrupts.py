"""Ctrl-C and SIGTERM end the program whatever it does: at its start, while it waits, reads, writes.

`test_command_contract` has all commands that wait for an answer.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
from array import array
from pathlib import Path

import pytest

from liftbridge_client import connect_sync
from liftbridge_client.cli import interrupts

PROGRAM = str(Path(sys.executable).parent / "liftbridge")
SIGNALS = [signal.SIGINT, signal.SIGTERM]
FOLLOW = ["--follow", "--from", "beginning", "--timeout", "600", "-o", "jsonl"]
PARTITIONS = 3 * 8
PIPE_BYTES = 4096
SECONDS_MAX = 30


@contextlib.contextmanager
def program(*arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **environment):
    """The program while a block runs, in a group of its own."""
    with subprocess.Popen(
        [PROGRAM, *arguments],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONUNBUFFERED": "", **environment},
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition, process):
    """Look until something is so, while the program runs."""
    while not condition():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.001)
            pytest.fail(process.stderr.read())


def assert_ends(process, *numbers):
    """Signals end it with what a shell shows for one of them, and without a word."""
    for number in numbers:
        process.send_signal(number)
    code = process.wait(SECONDS_MAX)
    assert (-code if code < 0 else code - 128) in numbers
    assert process.stderr.read() == ""


@pytest.fixture(scope="module")
def stream(broker, tmp_path_factory):
    """A stream of many partitions, the first of which alone has a message; and a large one."""
    with pytest.MonkeyPatch.context() as patch, connect_sync(broker.address) as lb:
        patch.setenv("LIFTBRIDGE_SERVERS", broker.address)
        patch.setenv("LIFTBRIDGE_CONFIG", str(tmp_path_factory.mktemp("c") / "profiles.toml"))
        stream = lb.streams.create("interrupted", partitions=PARTITIONS)
        stream.publish(b"x", partition=0)
        lb.streams.create("large").publish(b"x" * 4 * PIPE_BYTES)
        yield stream


@pytest.mark.parametrize("number", SIGNALS)
def test_program_that_still_imports_is_ended(stream, number):
    with program("subscribe", stream.name, *FOLLOW) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        until(lambda: "cygrpc" in maps.read_text(), process)
        assert_ends(process, number)


@pytest.mark.parametrize("number", SIGNALS)
def test_follower_is_ended(stream, number):
    with program("subscribe", stream.name, "-p", "0", *FOLLOW) as process:
        assert process.stdout.readline().startswith("{")
        assert_ends(process, number)


def test_follower_of_more_partitions_than_it_reads_ahead_is_ended(stream):
    with program("subscribe", stream.name, *FOLLOW) as process:
        assert process.stdout.readline().startswith("{")
        assert_ends(process, signal.SIGINT)


def test_follower_whose_broker_is_gone_is_ended(mortal_broker):
    with connect_sync(mortal_broker.address) as lb:
        lb.streams.create("left").publish(b"x")
    servers = ("--servers", mortal_broker.address)
    with program("subscribe", "left", *FOLLOW, *servers) as process:
        assert process.stdout.readline().startswith("{")
        mortal_broker.kill()
        assert_ends(process, signal.SIGINT)


@pytest.mark.parametrize("numbers", [SIGNALS[:1], SIGNALS])
def test_follower_that_writes_to_a_full_pipe_is_ended(stream, numbers):
    """By the second signal at once; by one alone when it has been blocked for a while."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    held = array("i", [0])

    def is_full():
        fcntl.ioctl(reader, termios.FIONREAD, held)
        return held[0] == PIPE_BYTES

    with program("subscribe", "large", *FOLLOW, stdout=writer) as process:
        until(is_full, process)
        assert_ends(process, *numbers)
    os.close(reader)
    os.close(writer)


def test_publisher_that_waits_for_its_input_is_ended(stream):
    reader, writer = os.pipe()
    with program("publish", stream.name, stdin=reader) as process:
        os.write(writer, b"first\n")
        assert process.stdout.readline().startswith("partition")
        assert_ends(process, signal.SIGINT)
    os.close(reader)
    os.close(writer)


def test_publisher_that_waits_for_a_file_is_ended(stream, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with program("publish", stream.name, "--file", str(pipe)) as process:
        wait = Path(f"/proc/{process.pid}/task")
        until(lambda: any(is_opening(one) for one in wait.iterdir()), process)
        assert_ends(process, signal.SIGINT)


def is_opening(thread):
    """Whether a thread waits for the other end of a named pipe."""
    with contextlib.suppress(OSError):
        return (thread / "wchan").read_text() in {"wait_for_partner", "fifo_open"}
    return False


@pytest.mark.parametrize("command", ["dev", "demo"])
def test_cluster_that_still_starts_is_ended_and_leaves_nothing(tmp_path, command):
    (tmp_path / "tmp").mkdir()
    arguments = {"dev": ["dev", "--ephemeral"], "demo": ["demo"]}[command]
    environment = {"TMPDIR": str(tmp_path / "tmp"), "LIFTBRIDGE_CONFIG": str(tmp_path / "c.toml")}
    with program(*arguments, **environment) as process:
        until(lambda: list((tmp_path / "tmp").rglob("broker.log")), process)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 128 + signal.SIGINT
    assert list((tmp_path / "tmp").iterdir()) == []


# -- the part that hears, by itself ------------------------------------------------------------


@pytest.mark.parametrize("number", SIGNALS)
def test_command_cleans_up_and_what_handled_signals_before_does_so_again(number):
    before = [signal.getsignal(one) for one in SIGNALS]
    told = []

    async def body():
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("cleaned up")

    assert interrupts.run(body()) == 128 + number
    assert told == ["cleaned up"]
    assert [signal.getsignal(one) for one in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_that_comes_to_another_thread_while_the_loop_waits_is_heard(number):
    ended, told = threading.Event(), threading.Event()

    def other():
        told.wait()
        signal.pthread_kill(threading.get_ident(), number)
        ended.wait()

    async def body():
        asyncio.get_running_loop().call_soon(told.set)
        await asyncio.Event().wait()

    thread = threading.Thread(target=other)
    thread.start()
    assert interrupts.run(body()) == 128 + number
    ended.set()
    thread.join()


def test_command_that_ends_well_meanwhile_has_ended_well():
    async def body():
        with contextlib.suppress(asyncio.CancelledError):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    assert interrupts.run(body()) == 0


def test_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def body():
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)

    try:
        assert interrupts.run(body()) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
