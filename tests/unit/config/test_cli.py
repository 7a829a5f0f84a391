"""The command: flags of the original, check-config, exit codes, one line an error."""

import json
import subprocess
import sys

import pytest

from liftbridge_broker.cli import ExitCode, main
from liftbridge_broker.config.table import SETTINGS

# Flags of the original's command with the settings they stand for.
ORIGINAL_FLAGS = {
    "--server-id": ("clustering.server.id", "b1"),
    "--id": ("clustering.server.id", "b1"),
    "--namespace": ("clustering.namespace", "ns"),
    "--ns": ("clustering.namespace", "ns"),
    "--nats-servers": ("nats.servers", "a:1,b:2"),
    "-n": ("nats.servers", "a:1,b:2"),
    "--embedded-nats-config": ("nats.embedded.config", "n.conf"),
    "--nc": ("nats.embedded.config", "n.conf"),
    "--data-dir": ("data.dir", "data"),
    "-d": ("data.dir", "data"),
    "--port": ("port", "7"),
    "-p": ("port", "7"),
    "--level": ("logging.level", "debug"),
    "-l": ("logging.level", "debug"),
}
SWITCHES = {
    "--embedded-nats": "nats.embedded",
    "-e": "nats.embedded",
    "--raft-bootstrap-seed": "clustering.raft.bootstrap.seed",
}


def checked(capsys, *arguments):
    """Settings that `check-config` shows, by key."""
    assert main([*arguments, "-o", "json"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    return {setting["key"]: setting for setting in shown["settings"]}


def refusal(capsys, *arguments):
    """Exit code and the one line on standard error."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return code, captured.err


@pytest.mark.parametrize("flag", ORIGINAL_FLAGS)
def test_flags_of_the_original_set_their_settings(capsys, flag):
    key, value = ORIGINAL_FLAGS[flag]
    settings = checked(capsys, "check-config", flag, value)
    assert settings[key]["value"] == value
    assert settings[key]["origin"] == "flag"


@pytest.mark.parametrize("flag", SWITCHES)
def test_switches_of_the_original_need_no_value(capsys, flag):
    assert checked(capsys, "check-config", flag)[SWITCHES[flag]]["value"] == "true"


def test_switch_can_be_turned_off_with_a_value(capsys):
    settings = checked(capsys, "check-config", "--embedded-nats=false", "--nc", "n.conf")
    assert settings["nats.embedded"]["value"] == "false"


def test_tls_flags_go_together(capsys):
    settings = checked(capsys, "check-config", "--tls-cert", "c.pem", "--tls-key", "k.pem")
    assert (settings["tls.cert"]["value"], settings["tls.key"]["value"]) == ("c.pem", "k.pem")


def test_server_lists_may_be_repeated(capsys):
    settings = checked(capsys, "check-config", "-n", "a:1,b:2", "-n", "c:3")
    assert settings["nats.servers"]["value"] == "a:1,b:2,c:3"


def test_flags_before_the_subcommand_count_and_later_ones_win(capsys):
    settings = checked(capsys, "-p", "1", "--host", "h", "check-config", "-p", "2")
    assert (settings["port"]["value"], settings["host"]["value"]) == ("2", "h")


def test_any_setting_can_be_set(capsys):
    settings = checked(capsys, "check-config", "--set", "Streams.Cleaner.Interval=2m")
    assert settings["streams.cleaner.interval"]["value"] == "2m"


def test_check_config_shows_every_setting_with_its_origin(capsys, tmp_path):
    path = tmp_path / "broker.yaml"
    path.write_text("port: 7\nbatch.max.messages: 5\n", encoding="utf-8")
    assert main(["check-config", "--config", str(path)]) == ExitCode.OK
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert [line.split()[0] for line in lines] == ["SETTING", *SETTINGS]
    assert lines[3].split() == ["port", "7", f"{path}:1", "no"]
    assert "batch.max.messages has no effect" in captured.err
    assert "fingerprint " in captured.err


def test_secrets_are_masked(capsys):
    arguments = ["--set", "nats.user=u", "--set", "nats.password=hunter2"]
    assert main(["check-config", *arguments]) == ExitCode.OK
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    assert "***" in captured.out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["check-config", "--port", "x"], ExitCode.REFUSED, "--port: port: 'x' is not"),
        (["--set", "streams.encryption=true"], ExitCode.REFUSED, "streams.encryption needs a"),
        (
            ["--raft-bootstrap-peers", "a"],
            ExitCode.REFUSED,
            "clustering.raft.bootstrap.peers needs",
        ),
        (["-c", "/nowhere/x.yaml"], ExitCode.REFUSED, "cannot read /nowhere/x.yaml"),
        (["--set", "port"], ExitCode.USAGE, "--set needs KEY=VALUE"),
        (["--no-such-flag"], ExitCode.USAGE, "--no-such-flag"),
        (["no-such-command"], ExitCode.USAGE, "no-such-command"),
        (["check-config", "-o", "xml"], ExitCode.USAGE, "xml"),
    ],
)
def test_errors_are_one_line_with_a_stable_code(capsys, arguments, code, text):
    given_code, line = refusal(capsys, *arguments)
    assert given_code == code
    assert line.startswith("liftbridge-broker: ")
    assert text in line


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["check-config", "--help"]])
def test_version_and_help_are_data(capsys, arguments):
    assert main(arguments) == ExitCode.OK
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out != ""


def test_help_names_every_flag(capsys):
    assert main(["--help"]) == ExitCode.OK
    text = capsys.readouterr().out
    missing = [
        f for s in SETTINGS.values() for f in s.flags if f"{f} " not in text.replace(",", " ")
    ]
    assert missing == []


def test_running_without_assertions_is_refused():
    """Invariants are assertions, so a broker without them must not run."""
    code = "import sys; from liftbridge_broker.cli import main; sys.exit(main(['check-config']))"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, check=False)
    assert done.returncode == ExitCode.REFUSED
    assert done.stderr.decode().startswith("liftbridge-broker: assertions are off")
