"""Ports that test processes draw side by side."""

import subprocess
import sys

from liftbridge_testkit.open_files import open_files
from liftbridge_testkit.processes import free_port

DRAW = (
    "from liftbridge_testkit.processes import free_port; print(*(free_port() for _ in range(150)))"
)


def test_no_port_is_drawn_twice():
    own = [free_port() for _ in range(50)]
    others = [
        subprocess.Popen([sys.executable, "-c", f"{DRAW}; input()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    told = [other.stdout.readline().split() for other in others]
    for other in others:
        other.communicate("\n")
    drawn = [*own, *(int(port) for ports in told for port in ports)]
    assert len(drawn) == 350
    assert len(set(drawn)) == 350


def test_drawing_keeps_one_file_open_however_many_ports():
    free_port()
    before = open_files()
    for _ in range(20):
        free_port()
    assert not open_files() - before
