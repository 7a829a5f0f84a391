"""Several brokers of one cluster as child processes, the first of them with the NATS server."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from liftbridge_client.aio.client import connect
from liftbridge_client.cli.local.broker import NATS_LOGIN, LocalBroker, free_port, is_free
from liftbridge_client.cli.output import say
from liftbridge_client.cli.patience import PATIENCE_SECONDS, awaiting
from liftbridge_client.errors import LiftbridgeError, ServerError
from liftbridge_client.model import Metadata

IN_SYNC_SECONDS_MAX: Final = 15.0
POLL_SECONDS: Final = 0.02
KEY_BYTES: Final = 32
PORT_STEP: Final = 10
"""Distance between the ports of two consecutive brokers."""


class Ports(NamedTuple):
    """Ports of the first broker; each further broker adds `PORT_STEP`, if these are free."""

    grpc: int
    nats: int
    metrics: int
    admin: int = 0
    """0 for none."""


class LocalCluster:
    """One or more brokers on one machine; may be started again on the same data and ports.

    Attributes:
        data_dir: Directory with the data: that of a single broker, or a folder for each by name.
        brokers: The brokers, the one with the NATS server first.
    """

    def __init__(self, data_dir: Path, count: int, ports: Ports) -> None:
        """Configure the cluster without starting it."""
        assert count >= 1
        self.data_dir = data_dir
        self._secret_file = data_dir / "cluster.keys"
        self.brokers: tuple[LocalBroker, ...]
        if count == 1:
            alone = LocalBroker(
                data_dir,
                port=ports.grpc,
                nats_port=ports.nats,
                metrics_port=ports.metrics,
                admin_port=ports.admin,
                secret_file=self._secret_file,
            )
            self.brokers = (alone,)
            return
        names = [f"broker-{number}" for number in range(1, count + 1)]
        taken = {ports.nats}
        self.brokers = tuple(
            LocalBroker(
                data_dir / name,
                port=_next_port(ports.grpc + place * PORT_STEP, taken),
                nats_port=ports.nats,
                metrics_port=_next_port(ports.metrics + place * PORT_STEP, taken),
                admin_port=_next_port(ports.admin + place * PORT_STEP, taken) if ports.admin else 0,
                secret_file=self._secret_file,
                name=name,
                peers=names,
                has_nats=place == 0,
            )
            for place, name in enumerate(names)
        )

    @property
    def addresses(self) -> str:
        """Comma-separated addresses for clients."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def admin_addresses(self) -> str:
        """Comma-separated addresses for operators."""
        return ",".join(broker.admin_address for broker in self.brokers)

    @property
    def nats_url(self) -> str:
        """Address of the NATS server."""
        return self.brokers[0].nats_url

    @property
    def metrics_urls(self) -> str:
        """Comma-separated addresses of the metrics."""
        return ",".join(broker.metrics_url for broker in self.brokers)

    @property
    def ended(self) -> Iterator[LocalBroker]:
        """Brokers that were started and have ended."""
        return (broker for broker in self.brokers if broker.exit_code is not None)

    async def start(self) -> None:
        """Start all brokers and wait until they serve.

        Raises:
            ServerError: A broker did not start; all brokers were stopped.
            UsageError: The broker is not installed.
        """
        first, *others = self.brokers
        is_ready = False
        failures: list[Exception] = []
        self._make_secret()
        try:
            async with asyncio.TaskGroup() as tasks:
                leading = tasks.create_task(first.start())
                if others:
                    # The first broker serves only with the other brokers, which need its NATS
                    # server.
                    await self._until_nats_listens(leading)
                for broker in others:
                    tasks.create_task(broker.start())
            if others:
                await self._until_in_sync()
            is_ready = True
        except* LiftbridgeError as group:
            failures += group.exceptions
        finally:
            if not is_ready:
                self.kill()
        if failures:
            raise failures[0]

    def _make_secret(self) -> None:
        """Create, once, the key of the cluster and the brokers' password for NATS."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for path in (self._secret_file, self._secret_file.with_name(NATS_LOGIN)):
            with (
                contextlib.suppress(FileExistsError),
                os.fdopen(os.open(path, flags, 0o600), "w") as file,
            ):
                file.write(secrets.token_hex(KEY_BYTES))

    async def _until_nats_listens(self, first: asyncio.Task[None]) -> None:
        """Wait for the NATS server of the first broker, or for the end of its start."""
        nats_port = self.brokers[0].nats_port
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while is_free(nats_port) and not first.done():  # noqa: ASYNC110 - a port is no event
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise ServerError("the NATS server of the first broker is not listening") from None

    async def _until_in_sync(self) -> None:
        """Wait until replicas have caught up; before that, ack policy `all` may be refused."""
        with contextlib.suppress(TimeoutError, LiftbridgeError):
            async with (
                asyncio.timeout(IN_SYNC_SECONDS_MAX),
                awaiting("replicas to be in sync"),
                connect(self.addresses) as client,
            ):
                while _is_behind(await client.metadata()):  # noqa: ASYNC110 - no event to wait for
                    await asyncio.sleep(POLL_SECONDS)
                return
        say("liftbridge: some replicas are not in sync yet")

    def kill(self) -> None:
        """Kill all brokers as in a crash (SIGKILL)."""
        for broker in self.brokers:
            broker.kill()

    async def stop(self) -> None:
        """Stop all brokers concurrently, and wait.

        Raises:
            ServerError: A broker did not stop in time, and was killed.
        """
        ends = await asyncio.gather(
            *(broker.stop() for broker in self.brokers), return_exceptions=True
        )
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()


def _is_behind(metadata: Metadata) -> bool:
    """Return whether a partition has a replica that is not in sync."""
    return any(
        set(partition.isr) != set(partition.replicas)
        for stream in metadata.streams.values()
        for partition in stream.partitions.values()
    )


def _next_port(wanted: int, taken: set[int]) -> int:
    """Return the wanted port if it is free and not given yet, otherwise another one."""
    port = free_port(wanted) if wanted not in taken and wanted < 65_536 else free_port()
    while port in taken:
        port = free_port()
    taken.add(port)
    return port
