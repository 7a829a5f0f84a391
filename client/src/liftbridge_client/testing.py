"""A broker inside your tests: the production core on your event loop, with all I/O in memory.

    async with Broker() as broker, broker.client() as lb:
        orders = await lb.streams.create("orders")
        await orders.publish(b"three apples")
        await broker.kill()                      # unsynced data is gone
        await broker.restart()
        await broker.advance(timedelta(days=8))  # retention, auto-pause: immediately

Streams, acks, errors and recovery are those of a production broker, because it is the same code;
its files, NATS and clocks are in memory. The pytest fixture `liftbridge` is such a broker.
Needs an extra: `pip install 'liftbridge[testing]'`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Literal, Self

from liftbridge_client.aio.client import Client, connect
from liftbridge_client.errors import UsageError
from liftbridge_client.model import TlsFiles

try:
    from liftbridge_broker.adapters.memory.files import Fault, MemoryFiles
    from liftbridge_broker.adapters.memory.messaging import Sent
    from liftbridge_broker.errors import ConfigError
    from liftbridge_broker.model.subject_table import SubjectTable
    from liftbridge_broker.model.subjects import is_publishable
    from liftbridge_broker.server.memory import MemoryBroker, Transition
    from liftbridge_broker.wire.nats import header_block
except ModuleNotFoundError as error:
    raise ImportError(
        f"liftbridge_client.testing needs the broker, which is not installed ({error}): "
        "pip install 'liftbridge[testing]'"
    ) from error

__all__ = ["Broker", "Fault", "MemoryFiles", "NatsMessage", "Transition"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LINE_ENDS: Final = frozenset("\r\n")


@dataclass(frozen=True, slots=True)
class NatsMessage:
    """A message as plain NATS subscribers see it.

    Attributes:
        subject: Where it was published.
        data: Payload; a Liftbridge envelope if a client published it through the broker.
        reply: Reply subject, empty for none.
        headers: NATS headers; of those with the same name, the last one.
    """

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Broker:
    """A broker in memory; it starts when it is entered with `async with`.

    It serves gRPC on a free port of 127.0.0.1, which stays the same across restarts, so any client
    can use it while the event loop runs. It starts no task and no thread. Its time stands still
    until `advance`; timeouts of clients run in real time.
    """

    def __init__(
        self, *, config: Mapping[str, str] | None = None, time: datetime | None = None
    ) -> None:
        """Configure the broker.

        Args:
            config: Settings by dotted key, with values as in a configuration file:
                `{"streams.retention.max.age": "1h"}`. Cursors are on, with one partition, and
                there is no reserve file; everything else has the usual defaults.
            time: Time that the broker starts with; `None` for the real time.

        Raises:
            UsageError: `time` has no time zone.
        """
        begin = datetime.now(UTC) if time is None else time
        if begin.tzinfo is None:
            raise UsageError("time must have a time zone")
        self._broker = MemoryBroker(dict(config or {}), (begin - _EPOCH) // _MICROSECOND * 1_000)

    async def __aenter__(self) -> Self:
        """Start.

        Raises:
            UsageError: A setting is invalid.
        """
        try:
            await self._broker.start()
        except ConfigError as error:
            await self._broker.aclose()
            raise UsageError(error.text) from error
        except BaseException:
            await self._broker.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop and clean up; raises the error that ended the broker, if that was a bug."""
        await self._broker.aclose()

    # What it is.

    @property
    def address(self) -> str:
        """Address `host:port` for any client."""
        return f"{self._broker.host}:{self._broker.port}"

    @property
    def time(self) -> datetime:
        """Current time of the broker, used for message timestamps."""
        return _EPOCH + timedelta(microseconds=self._broker.clock.wall_ns() // 1_000)

    @property
    def is_running(self) -> bool:
        """Return whether the broker is running; a paused broker counts as running."""
        return self._broker.is_running

    @property
    def disk(self) -> MemoryFiles:
        """Disk of the broker: `fail` schedules failures of calls, `capacity_bytes` is its size."""
        return self._broker.files

    @property
    def transitions(self) -> Sequence[Transition]:
        """State changes, as its log would report them; at least the latest 5,000, oldest first."""
        return tuple(self._broker.transitions)

    def client(
        self,
        *,
        tls: TlsFiles | None = None,
        timeout: timedelta = timedelta(seconds=5),
        retry_time: timedelta = timedelta(seconds=10),
    ) -> Client:
        """Create a client of this broker, to enter with `async with`; options as for `connect`."""
        return connect(self.address, tls=tls, timeout=timeout, retry_time=retry_time)

    # Time.

    async def advance(self, duration: timedelta | float) -> None:
        """Advance the time, and do everything that the broker would do in it, in order.

        Args:
            duration: Duration; a number is in seconds.

        Raises:
            UsageError: The duration is negative.
        """
        if not isinstance(duration, timedelta):
            duration = timedelta(seconds=duration)
        if duration < timedelta(0):
            raise UsageError("time must not go back")
        await self._broker.advance(duration // _MICROSECOND * 1_000)

    # Life.

    async def kill(self, *, unsynced: Literal["lost", "kept"] = "lost") -> None:
        """Kill it: connections break, nothing is flushed. No effect if it is not running.

        Args:
            unsynced: What happens to bytes that were not synced: `lost` as when the machine loses
                power, `kept` as when only the process is killed.
        """
        await self._broker.kill(unsynced)

    async def stop(self) -> None:
        """Stop cleanly: calls are drained, everything is synced. No effect if not running."""
        await self._broker.stop()

    async def restart(self) -> None:
        """Start again on what the disk holds; a running broker is first stopped cleanly."""
        await self._broker.stop()
        await self._broker.start()

    def pause(self) -> None:
        """Freeze it, as by SIGSTOP: connections stay, nothing is answered, no timer fires."""
        self._broker.pause()

    def resume(self) -> None:
        """Resume a paused broker, with everything that arrived meanwhile."""
        self._broker.resume()

    # NATS.

    async def publish_nats(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish on NATS, as a program that does not know Liftbridge does.

        When this returns, streams on the subject have the message. A broker that is not running
        never gets it; a paused one gets it when it resumes.

        Args:
            subject: Concrete subject.
            data: Payload.
            reply: Reply subject, empty for none.
            headers: NATS headers.

        Raises:
            UsageError: A subject or header cannot be sent, or the message is too large for NATS.
        """
        if not is_publishable(subject) or (reply and not is_publishable(reply)):
            raise UsageError(f"not a NATS subject: {subject!r}, reply {reply!r}")
        pairs = list((headers or {}).items())
        if any(_LINE_ENDS & set(name + value) or ":" in name for name, value in pairs):
            raise UsageError("a NATS header contains a line break, or its name contains a colon")
        block = header_block(pairs) if pairs else b""
        limit = self._broker.messaging.payload_bytes_max
        if len(block) + len(data) > limit:
            raise UsageError(
                f"message of {len(block) + len(data)} bytes: NATS accepts at most {limit}"
            )
        await self._broker.publish_nats(Sent(subject, data, block, is_quiet=False, reply=reply))

    def nats_messages(self, subject: str = ">") -> list[NatsMessage]:
        """Messages published on NATS: by the broker for its clients, as its acks, and by you.

        Args:
            subject: Subject to filter by; may contain wildcards.

        Returns:
            At least the latest 5,000 messages, oldest first.

        Raises:
            UsageError: The text is not a subject.
        """
        if not is_publishable(subject):
            raise UsageError(f"not a NATS subject: {subject!r}")
        wanted: SubjectTable[str] = SubjectTable()
        wanted.add(subject, subject)
        return [
            NatsMessage(sent.subject, sent.payload, sent.reply, _headers(sent.headers))
            for sent in self._broker.messaging.sent
            if wanted.lookup(sent.subject)
        ]


def _headers(block: bytes) -> Mapping[str, str]:
    lines = (line.partition(":") for line in block.decode(errors="replace").split("\r\n")[1:])
    return {name: value.strip() for name, colon, value in lines if colon}
