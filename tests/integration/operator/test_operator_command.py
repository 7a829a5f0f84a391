"""The command as a process of its own: it leads, serves its probes, and ends with a code."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from liftbridge_operator.kube.kinds import LEASES
from liftbridge_testkit.kube.http import ApiOverHttp
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.processes import free_port

COMMAND = Path(sys.executable).with_name("liftbridge-operator")
FAST = ("--lease-duration", "30", "--lease-renew", "25", "--lease-retry", "0.1")
SECONDS_MAX = 100.0


@pytest.fixture
async def server():
    async with ApiOverHttp(MemoryKube()) as server:
        yield server


@asynccontextmanager
async def command(folder, server, *arguments):
    """The command before a server, or before none."""
    config = folder / "kubeconfig" if server is None else server.write_kubeconfig(folder)
    environ = {**os.environ, "KUBECONFIG": str(config)}
    process = await asyncio.create_subprocess_exec(
        COMMAND, "run", *FAST, *arguments, env=environ, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def ended(process):
    async with asyncio.timeout(SECONDS_MAX):
        _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_it_leads_serves_and_ends_when_it_is_told_to(tmp_path, server):
    address = f"127.0.0.1:{free_port()}"
    async with command(tmp_path, server, "--listen", address) as process:
        await server.until(lambda: server.watched > 0)
        async with aiohttp.ClientSession() as web, web.get(f"http://{address}/livez") as answer:
            assert answer.status == 200
        process.terminate()
        code, said = await ended(process)
    assert code == 0
    lines = [json.loads(line) for line in said.splitlines()]
    told = [line["event"] for line in lines if line["logger"] == "liftbridge.operator"]
    assert told == ["operator_started", "lease_acquired", "lease_released", "operator_stopped"]
    assert "holderIdentity" not in server.kube.all_of(LEASES)[0]["spec"]


async def test_missing_credentials_are_one_line(tmp_path):
    async with command(tmp_path, None, "--listen", "127.0.0.1:0") as process:
        code, said = await ended(process)
    assert code == 1
    assert "no credentials for the API server" in said
    assert said.count("\n") == 1
