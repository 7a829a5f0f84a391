"""One contract for every command: forms of output, exit codes, one-line errors, no prompts."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from liftbridge_broker.controller.commands import FEATURE_LEVEL
from liftbridge_client.cli.app import app, run
from liftbridge_client.cli.command import SHAPES
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.wrong_servers import KINDS, WrongServer

PROGRAM = str(Path(sys.executable).parent / "liftbridge")
# Bytecode is cached as on a user's machine: without, half of a start is compiling.
CACHED = {"PYTHONDONTWRITEBYTECODE": ""}

ADMIN = ("access", "cluster", "keys", "quota", "token")
"""First words of commands that call the port for operators."""

# How each command is called so that it works, after the streams `s`, `gone` and `paused` exist.
CALLS = {
    "create": ["made-{form}"],
    "alter": ["s", "--max-age", "7d"],
    "settings": ["s"],
    "delete": ["gone-{form}", "--yes"],
    "pause": ["paused"],
    "readonly": ["s", "--off"],
    "streams": [],
    "partitions": ["s"],
    "bounds": ["s", "--time", "-10m"],
    "metadata": [],
    "whoami": [],
    "publish": ["s", "one", "two", "--key", "k"],
    "subscribe": ["s", "--count", "2"],
    "activity": ["--count", "2"],
    "cursor get": ["s", "me"],
    "cursor set": ["s", "me", "3"],
    "group list": [],
    "group lag": ["billing", "s"],
    "group reset": ["billing", "s", "--to-earliest"],
    "bench": ["-n", "2000"],
    "examples": [],
    "profile add": ["p", "--servers", "a,b:1"],
    "profile use": ["kept"],
    "profile show": ["kept"],
    "profile list": [],
    "profile remove": ["extra-{form}"],
    "access list": [],
    "access grant": ["bob", "publish,read", "stream:s*"],
    "access revoke": ["bob", "read", "stream:s*"],
    "access check": ["alice", "read", "stream:s"],
    "access export": ["/dev/null"],
    "access import": ["/dev/null"],
    "access nats-permissions": ["alice"],
    "access disable": ["--yes"],
    "quota set": ["principal", "billing", "--publish-bytes", "10MB"],
    "quota list": [],
    "quota remove": ["principal", "billing"],
    "cluster status": [],
    "cluster check": [],
    "cluster members": [],
    "cluster brokers": [],
    "cluster broker": ["broker"],
    "cluster restarts": ["broker"],
    "cluster settings": ["broker"],
    "cluster reload": ["broker"],
    "cluster catch-up-rate": ["20MB"],
    "cluster identities": [],
    "keys status": [],
    "keys rewrap": [],
    "cluster partitions": ["s"],
    "cluster reassignments": [],
    "cluster check-restart": ["broker", "--allow-unavailable"],
    "cluster cordon": ["broker"],
    "cluster drain": ["broker"],
    "cluster uncordon": ["broker"],
    "cluster feature-level": [str(FEATURE_LEVEL), "--yes"],
    "cluster elect": ["s/0"],
    "cluster reassign": ["s", "0", "broker"],
    "cluster transfer-metadata": ["--to", "broker"],
    "token create": ["billing", "--group", "ops", "--lifetime", "90d"],
    "token list": [],
}
# Has nothing to print, and what has to be undone for the other tests.
EMPTY = {
    "cluster reassignments",
    "access grant",
    "access revoke",
    "access import",
    "keys status",
    "group list",
}
UNDONE = dict.fromkeys(("cluster cordon", "cluster drain"), ("cluster", "uncordon", "broker"))
# Those of a lone broker are refused or need what only the test knows: see `test_admin_client`.
REFUSED = {
    "cluster verify-restart": ["broker", "AAAA"],
    "cluster remove-broker": ["broker", "--yes"],
    "cluster retire": ["broker", "directory", "--yes"],
    "cluster transfer": ["s/0"],
    "keys rotate": ["k1"],
    "cluster owner": ["s", "me", "--id", "1"],
    "group describe": ["nobody"],
    "group delete": ["nobody", "--yes"],
    "group evict": ["nobody", "me"],
    "cluster elect-unclean": ["s", "0", "broker", "--epoch", "1", "--yes"],
    "cluster cancel-reassign": ["s", "0"],
    "cluster bootstrap": ["other", "broker=directory"],
    "cluster add-learner": ["broker", ""],
    "cluster promote": ["b9", "directory"],
    "cluster remove-member": ["broker", "", "--yes"],
    "token revoke": ["a" * 12],
}
LONG_RUNNING = {"dev", "demo"}  # have tests of their own; their schema is walked here
ASKING = {
    words: arguments
    for words, arguments in {**CALLS, **REFUSED}.items()
    if words != "examples" and not words.startswith("profile")
}
FORMS = ["table", "json", "jsonl"]


def commands(group=None, words=()):
    """Words of every command there is."""
    group = group or typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name))


COMMANDS = list(commands())


class Result(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def environment(tmp_path_factory, broker):
    folder = tmp_path_factory.mktemp("config")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFTBRIDGE_CONFIG", str(folder / "profiles.toml"))
        patch.setenv("LIFTBRIDGE_SERVERS", broker.address)
        patch.setenv("LIFTBRIDGE_ADMIN", broker.admin_address)
        patch.setenv("NO_COLOR", "1")
        for stream in ("s", "paused", *(f"gone-{form}" for form in FORMS)):
            assert run(["create", stream]) == 0
        assert run(["publish", "s", "a", "b", "c"]) == 0
        assert run(["access", "grant", "alice", "read", "stream:s"]) == 0
        assert run(["quota", "set", "stream", "s", "--stored-bytes", "1GB"]) == 0
        assert run(["token", "create", "alice"]) == 0
        for name in ("kept", *(f"extra-{form}" for form in FORMS)):
            assert run(["profile", "add", name]) == 0
        yield patch


@pytest.fixture
def liftbridge(environment, capsys):
    """Run a command in this process, which is what the program does in its own."""

    def call(*arguments):
        capsys.readouterr()
        code = run(arguments)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


@pytest.fixture(scope="module")
def web_server(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("authority"))
    with WrongServer(KINDS["http1"], authority) as running:
        yield running.address


def program(*arguments, stdin="", **environment):
    return subprocess.run(
        [PROGRAM, *arguments],
        env={**os.environ, **CACHED, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def fits(value, schema):
    """Whether a value is as a schema says; knows what our schemas use."""
    if "anyOf" in schema:
        return any(fits(value, part) for part in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "object":
            names = set(schema.get("properties", ()))
            rest = schema["additionalProperties"]
            return (
                isinstance(value, dict)
                and set(schema.get("required", ())) <= set(value)
                and all(fits(value[name], schema["properties"][name]) for name in names)
                and (rest is not False or set(value) <= names)
                and (rest is False or all(fits(part, rest) for part in value.values()))
            )
        case "array":
            return isinstance(value, list) and all(fits(part, schema["items"]) for part in value)
        case kind:
            types = {"string": str, "integer": int, "number": float | int, "boolean": bool}
            types["null"] = type(None)
            is_number = kind in ("integer", "number")
            return isinstance(value, types[kind]) and not (is_number and isinstance(value, bool))


def test_every_command_is_walked_here():
    """But those of jobs, which `tests/spark` and `tests/integration/spark` walk."""
    elsewhere = {words for words in SHAPES if words.startswith("spark ")}
    assert set(COMMANDS) == set(CALLS) | set(REFUSED) | LONG_RUNNING | elsewhere == set(SHAPES)


@pytest.mark.parametrize("words", COMMANDS)
def test_schema_is_printed_without_anything_else_being_needed(liftbridge, words):
    result = liftbridge(*words.split(), "-o", "schema")
    assert (result.returncode, result.stderr) == (0, "")
    schema = json.loads(result.stdout)
    assert schema == SHAPES[words].schema()
    assert schema["type"] in ("object", "array")
    row = schema.get("items", schema)
    # Columns that only a run knows have no names here.
    assert row.get("required") or "additionalProperties" in row


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words", sorted(CALLS))
def test_data_is_on_stdout_in_the_form_asked_for(liftbridge, words, form):
    arguments = [argument.format(form=form) for argument in CALLS[words]]
    result = liftbridge(*words.split(), *arguments, "-o", form)
    if words in UNDONE:
        assert liftbridge(*UNDONE[words]).returncode == 0
    assert (result.returncode, result.stdout != "" or words in EMPTY) == (0, True), result.stderr
    schema = SHAPES[words].schema()
    if form == "json":
        assert fits(json.loads(result.stdout), schema)
    elif form == "jsonl":
        for line in result.stdout.splitlines():
            assert fits(json.loads(line), schema.get("items", schema))
    else:
        assert "{" not in result.stdout.partition("\n")[0]


@pytest.mark.parametrize("words", sorted(set(CALLS) | set(REFUSED)))
def test_wrong_usage_is_one_line_and_exit_code_2(liftbridge, words):
    result = liftbridge(*words.split(), "--no-such-option")
    assert (result.returncode, result.stdout) == (2, "")
    assert_one_line(result.stderr, "USAGE")


@pytest.mark.parametrize("words", sorted(set(CALLS) & set(ASKING)))
def test_absent_server_is_one_line_and_exit_code_3(liftbridge, words):
    arguments = [argument.format(form="x") for argument in CALLS[words]]
    option = "--admin" if words.startswith(ADMIN) else "--servers"
    result = liftbridge(*words.split(), *arguments, option, "127.0.0.1:1", "--timeout", "0.4")
    assert (result.returncode, result.stdout) == (3, "")
    assert "no answer from 127.0.0.1:1 (given): " in result.stderr
    assert "start a broker with `liftbridge dev`" in result.stderr
    assert f"name another one with {option} or --profile" in result.stderr
    assert_one_line(result.stderr, "UNAVAILABLE")


@pytest.mark.parametrize("words", sorted(set(CALLS) & set(ASKING)))
def test_server_that_is_no_broker_is_one_line_with_a_remedy(liftbridge, web_server, words):
    arguments = [argument.format(form="x") for argument in CALLS[words]]
    option = "--admin" if words.startswith(ADMIN) else "--servers"
    result = liftbridge(*words.split(), *arguments, option, web_server, "--timeout", "0.5")
    assert (result.returncode, result.stdout) == (3, "")
    assert f"{web_server} speaks HTTP/1, not gRPC" in result.stderr
    assert "Name the gRPC port of a broker" in result.stderr
    assert_one_line(result.stderr, "UNAVAILABLE")


def interrupt(silent, ended):
    """Send this process Ctrl-C as soon as somebody connects, who gets no answer."""
    held, _ = silent.accept()
    with held:
        os.kill(os.getpid(), signal.SIGINT)
        ended.wait()


@pytest.mark.parametrize("words", sorted(ASKING))
def test_command_that_waits_for_an_answer_is_ended_by_ctrl_c(liftbridge, words):
    arguments = [argument.format(form="x") for argument in ASKING[words]]
    option = "--admin" if words.startswith(ADMIN) else "--servers"
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = threading.Thread(target=interrupt, args=(silent, ended))
        peer.start()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = liftbridge(*words.split(), *arguments, option, address, "--timeout", "60")
        ended.set()
        peer.join()
    assert result == (130, "", "")


def test_absent_server_is_told_with_the_profile_that_names_it(liftbridge, monkeypatch):
    monkeypatch.delenv("LIFTBRIDGE_SERVERS")
    monkeypatch.delenv("LIFTBRIDGE_ADMIN")
    for name, option in (("metadata", "--servers"), ("cluster brokers", "--admin")):
        liftbridge("profile", "add", "away", "--servers", "127.0.0.1:1", "--admin", "127.0.0.1:1")
        result = liftbridge(*name.split(), "--profile", "away", "--timeout", "0.2")
        liftbridge("profile", "remove", "away")
        assert result.returncode == 3
        assert "no answer from 127.0.0.1:1 (profile away): " in result.stderr
        assert option in result.stderr


@pytest.mark.parametrize(
    "words",
    ["alter", "settings", "delete", "pause", "readonly", "partitions", "bounds", "subscribe"],
)  # fmt: skip
def test_refusal_is_one_line_and_exit_code_1(liftbridge, words):
    arguments = ["no-such-stream", *CALLS[words][1:]]
    result = liftbridge(*words.split(), *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert_one_line(result.stderr, "")


@pytest.mark.parametrize("words", sorted(REFUSED))
def test_refused_operation_prints_no_line_of_data_but_says_why(liftbridge, words):
    result = liftbridge(*words.split(), *REFUSED[words])
    assert result.returncode == 1
    if words == "cluster transfer":  # tells what became of each partition
        assert "no other broker to lead it" in result.stdout
    else:
        assert result.stdout == ""
        assert_one_line(result.stderr, "")


def assert_one_line(text, code):
    assert text.startswith("liftbridge: ")
    assert text.count("\n") == 1
    assert text.endswith(".\n")
    assert code in text
    assert "Traceback" not in text


def test_publish_to_an_unknown_stream_is_refused(liftbridge):
    result = liftbridge("publish", "no-such-stream", "x")
    assert (result.returncode, result.stdout) == (1, "")
    assert_one_line(result.stderr, "NOT_FOUND")


def test_cursor_of_an_unknown_stream_is_null_and_no_error(liftbridge):
    result = liftbridge("cursor", "get", "no-such-stream", "me", "-o", "json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["offset"] is None


def test_delete_does_not_ask_without_a_terminal(environment):
    result = program("delete", "s", stdin="y\n")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--yes" in result.stderr
    assert_one_line(result.stderr, "USAGE")
    assert program("settings", "s").returncode == 0


def test_reader_that_had_enough_ends_the_command_quietly(environment):
    lines = "".join(f"{number}\n" for number in range(20_000))
    assert program("create", "long").returncode == 0
    assert program("publish", "long", "-q", stdin=lines).returncode == 0
    with subprocess.Popen(
        [PROGRAM, "subscribe", "long", "-o", "jsonl"],
        env={**os.environ, **CACHED},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["profile list", "publish s", "streams -o json"])
def test_standard_streams_may_be_closed(environment, words, closed):
    result = subprocess.run(
        ["/bin/sh", "-c", f"exec {PROGRAM} {words} {closed}"],
        env={**os.environ, **CACHED},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shell", "more"),
    [
        ("bash", {"COMP_WORDS": "liftbridge sub", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "liftbridge sub"}),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "liftbridge sub", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        ),
    ],
)
def test_completion_completes_commands(shell, more):
    result = program(_LIFTBRIDGE_COMPLETE=f"complete_{shell}", **more)
    assert "subscribe" in result.stdout


def test_version_and_help_are_data(liftbridge):
    assert liftbridge("--version").stdout.startswith("liftbridge ")
    result = liftbridge("publish", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "--idempotent" in result.stdout
