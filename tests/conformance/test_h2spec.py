"""h2spec, the conformance suite for HTTP/2 servers: all cases, on both event loops and a broker.

Where there is neither h2spec nor a Go toolchain to build it with there is nothing to run and so no
test; `test_http2_conformance.py` goes through the same rules then and always.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from liftbridge_testkit.certs import Authority
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.repository import ROOT

VERSION = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
CASES = 145
GO = shutil.which("go")
FOUND = shutil.which("h2spec", path=f"{os.environ.get('PATH', '')}:{Path.home() / 'go' / 'bin'}")


def h2spec() -> str:
    """The program, built into `.bench/bin` if the machine has none."""
    if FOUND is not None:
        return FOUND
    target = ROOT / ".bench" / "bin"
    if not (target / "h2spec").exists():
        assert GO is not None
        environment = {**os.environ, "GOBIN": str(target)}
        command = [GO, "install", VERSION]
        made = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        assert made.returncode == 0, made.stderr
    return str(target / "h2spec")


def check_all_cases(port: str, *options: str) -> None:
    done = subprocess.run(
        [h2spec(), "--host", "127.0.0.1", "--port", port, "--timeout", "5", *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    last = done.stdout.rstrip().splitlines()[-1]
    assert last == f"{CASES} tests, {CASES} passed, 0 skipped, 0 failed", done.stdout


if GO is not None or FOUND is not None:

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("loop", ["--asyncio", "--uvloop"])
    @pytest.mark.parametrize("security", ["clear", "tls"])
    def test_every_case_passes(security: str, loop: str, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "liftbridge_testkit.grpc_echo", loop]
        options: list[str] = []
        if security == "tls":
            certificate = Authority(tmp_path).issue("server")
            command += [str(certificate.cert), str(certificate.key)]
            options = ["--tls", "--insecure"]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            check_all_cases(port, *options)
        finally:
            server.communicate(timeout=30)
        assert server.returncode == 0

    @pytest.mark.timeout(300)
    def test_every_case_passes_at_the_port_of_a_broker(broker: Broker) -> None:
        check_all_cases(str(broker.port))
