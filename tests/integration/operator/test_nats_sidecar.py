"""The rendered NATS sidecar as it runs: its shell, its configuration, a real nats-server."""

import asyncio
import contextlib
import json
import socket
import ssl
import time
import urllib.request
from pathlib import Path

import pytest

from liftbridge_operator.cluster.certificates.subject_names import internal_names
from liftbridge_operator.cluster.rendering.nats import auth_text
from liftbridge_operator.cluster.rendering.render import render
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.model import names
from liftbridge_testkit.nats_client import WAIT_SECONDS_MAX, nats_client, settled
from liftbridge_testkit.processes import NatsServer, free_port, program
from liftbridge_testkit.resources.clusters import (
    CLUSTER_ID,
    PASSWORDS,
    PATHS,
    cluster_of,
    inputs_for,
    load_spec,
)

ISSUER = CryptographyIssuer()
ETC = "/etc/liftbridge"
SPEC = load_spec(next(path for path in PATHS if path.stem == "embedded"))
CLUSTER, INPUTS = cluster_of(SPEC), inputs_for(SPEC)
OWN = "_LIFTBRIDGE.liftbridge-4f2c7a9e"


class Sidecar(NatsServer):
    """The container's command with its variables; paths and ports are those of the test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.routes, self.monitor = free_port(), free_port()
        rendered = render(CLUSTER, INPUTS)
        (self.container,) = rendered.template["spec"]["initContainers"]
        self.etc = folder / "etc"
        authority = self.make_leaf(None)
        self.authority = authority
        self.write("nats/nats.conf", rendered.configs[0]["data"][names.NATS_KEY])
        self.write("nats-auth/auth.conf", auth_text(CLUSTER, INPUTS, PASSWORDS))
        variables = {one["name"]: one.get("value", "orders-0") for one in self.container["env"]}
        moved = {key: value.replace(ETC, str(self.etc)) for key, value in variables.items()}
        path = f"{program('nats-server').parent}:/usr/bin:/bin"
        self._environment |= moved | {"PAUSE": "0.1", "PATH": path}

    def make_leaf(self, authority):
        """Another certificate, of the same authority when there is one."""
        now = int(time.clock_gettime(time.CLOCK_REALTIME))
        times = {"not_before_s": now - 60, "not_after_s": now + 3_600}
        # It outlasts leaves that are made of it in a later second.
        lasting = {**times, "not_after_s": now + 86_400}
        authority = authority or ISSUER.make_authority("internal", **lasting)
        leaf = ISSUER.issue(authority, "brokers", internal_names(CLUSTER), **times)
        self.write("internal/ca.crt", authority.cert.decode())
        self.write("internal/tls.key", leaf.key.decode())
        self.write("internal/tls.crt", leaf.cert.decode())
        return authority

    def write(self, name: str, text: str) -> None:
        path = self.etc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for before, after in (
            (ETC, str(self.etc)),
            ("0.0.0.0:4222", f"127.0.0.1:{self.port}"),
            ("0.0.0.0:6222", f"127.0.0.1:{self.routes}"),
            ("http_port: 8222", f'http: "127.0.0.1:{self.monitor}"'),
        ):
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")

    def command(self):
        return self.container["command"]

    def connected(self, user: str, key: str, errors: list[str] | None = None):
        async def note(error: Exception) -> None:
            if errors is not None:
                errors.append(str(error))

        return nats_client(
            f"tls://127.0.0.1:{self.port}",
            user=user,
            password=PASSWORDS[key],
            tls=self.trusted(),
            error_cb=note,
            allow_reconnect=False,
        )

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.etc / "internal/ca.crt"))

    def shown(self) -> bytes | None:
        """The certificate that is shown now; None when a reload cuts off who is about to log in."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), WAIT_SECONDS_MAX) as plain,
            plain.makefile("rb", buffering=0) as greeting,
        ):
            greeting.readline()  # INFO, in clear
            with self.trusted().wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                return secured.getpeercert(binary_form=True)
        return None


@pytest.fixture
def sidecar(tmp_path):
    with Sidecar(tmp_path) as running:
        yield running


async def test_applications_neither_hear_nor_say_what_is_between_brokers(sidecar):
    errors: list[str] = []
    async with (
        sidecar.connected("broker", "broker-password") as broker,
        sidecar.connected("client", "client-password", errors) as client,
    ):
        inside = await broker.subscribe(f"{OWN}.>")
        await settled(broker)
        every = await client.subscribe(">")
        await client.subscribe(f"{OWN}.b.orders-0.meta")
        await client.publish(f"{OWN}.b.orders-0.meta", b"forged")
        # It comes back after the server has acted on all that was said before it.
        await client.publish("orders", b"message")
        assert (await every.next_msg(WAIT_SECONDS_MAX)).data == b"message"
        await broker.publish(f"{OWN}.b.orders-1.meta", b"vote")
        assert (await inside.next_msg(WAIT_SECONDS_MAX)).data == b"vote"
        assert inside.pending_msgs == 0
        await client.publish("orders", b"another")
        assert (await every.next_msg(WAIT_SECONDS_MAX)).data == b"another"
    assert any("permissions violation for subscription" in one.lower() for one in errors)
    assert any("permissions violation for publish" in one.lower() for one in errors)


async def test_application_hears_of_acks_that_brokers_publish(sidecar):
    async with (
        sidecar.connected("broker", "broker-password") as broker,
        sidecar.connected("client", "client-password") as client,
    ):
        acks = await client.subscribe("acks.of.mine")
        await settled(client)
        await broker.publish("acks.of.mine", b"ack")
        assert (await acks.next_msg(WAIT_SECONDS_MAX)).data == b"ack"


def test_renewed_certificate_is_shown_without_a_restart(sidecar):
    sidecar.make_leaf(sidecar.authority)
    text = (sidecar.etc / "internal/tls.crt").read_text(encoding="utf-8")

    renewed = ssl.PEM_cert_to_DER_cert(text)
    sidecar.wait_until(lambda: sidecar.shown() == renewed, "showing the renewed certificate")
    assert sidecar.is_alive()


def test_server_ends_with_the_shell_that_started_it(sidecar):
    assert sidecar.stop() in {0, 1, 143}
    assert "Initiating Shutdown" in sidecar.log_text()
    assert not sidecar.is_ready()


async def test_nobody_gets_in_without_credentials_and_tls(sidecar):
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
    told = json.loads((await reader.readline()).removeprefix(b"INFO "))
    writer.close()
    await writer.wait_closed()
    assert told["auth_required"]
    assert told["tls_required"]
    assert told["max_payload"] == 8 << 20
    assert told["server_name"] == "orders-0"
    assert told["cluster"] == CLUSTER_ID


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_probes_are_answered(sidecar, probe):
    path = sidecar.container[probe]["httpGet"]["path"]
    with urllib.request.urlopen(f"http://127.0.0.1:{sidecar.monitor}{path}") as answer:
        assert answer.status == 200
