"""The command answers what needs no commands before it imports them."""

import subprocess
import sys

import liftbridge_client.cli.app as commands

PROGRAM = "import sys; sys.argv[1:] = ['--version']; import liftbridge_command as c; c.main(); "
IMPORTED = "print(sorted({'grpc', 'typer', 'google', 'liftbridge_client'} & {*sys.modules}))"


def test_version_needs_neither_the_commands_nor_grpc(capfd) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM + IMPORTED], capture_output=True, text=True, check=True
    )
    assert commands.run(["--version"]) == 0
    assert (run.stdout, run.stderr) == (capfd.readouterr().out + "[]\n", "")
