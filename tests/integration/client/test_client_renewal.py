"""Client certificates that are replaced and end while a client works."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from liftbridge_client import Client, Message, Start, TlsFiles, connect
from liftbridge_client.events import Connected, Disconnected
from liftbridge_operator.cluster.certificates.port import Pair
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_testkit.at_work import now_s, work
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.processes import Broker, free_port

ISSUER = CryptographyIssuer()
HOUR_SECONDS = 3_600
BRIEF_SECONDS = 4
AFTER_SECONDS = 3
"""Time for which a client works on after its first certificate has ended."""


class Site:
    """A broker that asks for certificates, and a folder of a client that is mounted from a Secret.

    As a kubelet does it, the names in the folder are links into another one, which is replaced.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.count = folder, free_port(), 0
        self.authority = Authority(folder)
        self.signer = self.new_signer()
        self.write(self.signer, "first", HOUR_SECONDS)
        server = self.authority.issue("server")
        self.broker = Broker(
            folder,
            config={
                "tls.cert": str(server.cert),
                "tls.key": str(server.key),
                "tls.client.auth.enabled": True,
                "tls.client.auth.ca": str(folder / "clients.pem"),
                "listen.tls": False,
                "listeners": f"secure=127.0.0.1:{self.port}",
            },
        )

    def new_signer(self) -> Pair:
        ends = now_s() + 2 * HOUR_SECONDS
        signer = ISSUER.make_authority(
            "clients", not_before_s=now_s() - HOUR_SECONDS, not_after_s=ends
        )
        (self.folder / "clients.pem").write_bytes(signer.cert)
        return signer

    def write(self, signer: Pair, name: str, seconds: int) -> int:
        """Give the client another certificate; return when that ends."""
        ends = now_s() + seconds
        pair = ISSUER.issue_client(
            signer, name, not_before_s=now_s() - HOUR_SECONDS, not_after_s=ends
        )
        files = {
            "ca.crt": self.authority.cert.read_bytes(),
            "tls.crt": pair.cert,
            "tls.key": pair.key,
        }
        self.count += 1
        made = self.folder / f"..{self.count}"
        made.mkdir()
        for key, text in files.items():
            (made / key).write_bytes(text)
            link = self.folder / key
            if not link.is_symlink():
                link.symlink_to(Path("..data") / key)
        (self.folder / "..next").symlink_to(made.name)
        (self.folder / "..next").rename(self.folder / "..data")
        return ends

    def client(self) -> Client:
        ca, cert, key = (self.folder / name for name in ("ca.crt", "tls.crt", "tls.key"))
        return connect(f"localhost:{self.port}", tls=TlsFiles(ca=ca, cert=cert, key=key))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("renewal"))
    with found.broker:
        yield found


async def taken(messages: AsyncGenerator[Message], count: int) -> list[bytes]:
    async with asyncio.timeout(10):
        return [(await anext(messages)).value for _ in range(count)]


def former_of(client: Client) -> list[object]:
    return list(client._session.transport._channels._former)


async def test_changed_files_name_the_next_calls_and_leave_running_ones(site: Site) -> None:
    site.write(site.signer, "first", HOUR_SECONDS)
    async with site.client() as client:
        stream = await client.streams.create("orders")
        events = client.events()
        messages = aiter(stream.subscribe(start=Start.earliest()))
        async with stream.publisher() as publisher:
            await publisher.publish(b"one")
            site.write(site.signer, "second", HOUR_SECONDS)
            assert (await client.who_am_i()).principal == "second"
            await publisher.publish(b"two")
            await stream.publish(b"three")
            assert await taken(messages, 3) == [b"one", b"two", b"three"]
            assert former_of(client)
        await messages.aclose()
        await client.who_am_i()
        assert not former_of(client)
        await client.aclose()
        told = [one async for one in events if isinstance(one, (Connected, Disconnected))]
    for address in {one.address for one in told}:
        kinds = [type(one) for one in told if one.address == address]
        assert kinds == ([Connected, Disconnected] * len(kinds))[: len(kinds)]
    assert Disconnected in map(type, told)


async def test_certificate_ends_at_work_and_no_call_fails(site: Site) -> None:
    ends = site.write(site.signer, "brief", BRIEF_SECONDS)
    async with site.client() as client:
        assert (await client.who_am_i()).principal == "brief"
        stream = await client.streams.create("lasting")

        async def change() -> int:
            site.write(site.signer, "brief", HOUR_SECONDS)
            return ends + AFTER_SECONDS

        await work(client, stream, change)
        assert client.stats.retries > 0


async def test_half_of_a_pair_is_not_used(site: Site) -> None:
    """Until the other half is there, too, the former certificate stays in use."""
    site.write(site.signer, "first", HOUR_SECONDS)
    async with site.client() as client:
        assert (await client.who_am_i()).principal == "first"
        key = site.folder / "tls.key"
        kept = key.read_bytes()
        site.write(site.signer, "second", HOUR_SECONDS)
        other = key.read_bytes()
        key.resolve().write_bytes(kept)
        assert (await client.who_am_i()).principal == "first"
        key.resolve().unlink()
        assert (await client.who_am_i()).principal == "first"
        (key.resolve().parent / "tls.key").write_bytes(other)
        assert (await client.who_am_i()).principal == "second"
