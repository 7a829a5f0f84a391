"""The command tells of a failed TLS handshake itself; gRPC writes nothing beside it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from liftbridge_broker.api.grpc import tls
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.grpc_echo import echo_server


async def test_command_says_one_line_whatever_grpc_has_to_say(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    expired = authority.issue("expired", days=-1)
    served = tls.ServerTls(tls.TlsFiles(certificate=expired.cert, key=expired.key))
    program = "import liftbridge_command; liftbridge_command.main()"
    environment = {name: os.environ[name] for name in os.environ if name != "GRPC_VERBOSITY"}
    environment |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    async def call(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, *arguments),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, said = await process.communicate()
        return said.decode()

    async with echo_server(tls=served) as echo:
        servers = ("--servers", f"127.0.0.1:{echo.port}", "--ca", str(authority.cert))
        assert await call("profile", "add", "expired", *servers) == ""
        said = await call("streams", "--timeout", "2")
    assert [line.partition(" ")[0] for line in said.splitlines()] == ["liftbridge:"]
