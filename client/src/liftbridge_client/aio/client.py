"""The client that callers enter."""

from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self, overload

from liftbridge_client import methods
from liftbridge_client.aio.listening import Events
from liftbridge_client.aio.session import ClientStats, Session
from liftbridge_client.aio.streams import Streams
from liftbridge_client.core.addresses import parse_addresses
from liftbridge_client.core.codec import ack_of, policy_of
from liftbridge_client.core.message_parts import check_message
from liftbridge_client.core.refusals import ack_error
from liftbridge_client.model import Ack, AckPolicy, Metadata, TlsFiles
from liftbridge_proto import api_pb2


def connect(
    servers: str,
    *,
    tls: TlsFiles | None = None,
    timeout: timedelta = timedelta(seconds=5),
    retry_time: timedelta = timedelta(seconds=10),
    zone: str = "",
) -> "Client":
    """A client, to be entered with `async with`; nothing happens before.

    Args:
        servers: `host:port`, several with commas, optionally as a `liftbridge://` URL.
        tls: TLS of the connections; `None` is plaintext.
        timeout: How long one try of a call may take, waiting for an ack included.
        retry_time: How long a call may take with everything in it: connecting, every try at every
            broker, and the pauses between. 0 is one try, for `timeout`.
        zone: Zone of this client; reads at replicas prefer brokers of it (`clustering.zone`).

    Raises:
        UsageError: An address is malformed.
    """
    addresses = parse_addresses(servers)
    session = Session(addresses, tls=tls, timeout=timeout, retry_time=retry_time, zone=zone)
    return Client(session)


class Client:
    """A client of a cluster; made by `connect`.

    The constructor does no I/O and is bound to no loop; using a client that was not entered, or is
    closed, fails at once.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        """Connect: the first seed that answers tells of all brokers.

        Raises:
            RetriableError: No seed answers within the retry time.
            UsageError: A TLS file cannot be read.
        """
        await self._session.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; calls that run are cancelled."""
        await self._session.aclose()

    @property
    def streams(self) -> Streams:
        """Making, finding and removing streams."""
        return Streams(self._session)

    @property
    def stats(self) -> ClientStats:
        """Counters of this client; the same object every time."""
        return self._session.stats

    @property
    def has_data(self) -> bool:
        """Whether our own calls are used; set to false, only those of the original are."""
        return self._session.has_data

    @has_data.setter
    def has_data(self, has_data: bool) -> None:
        self._session.has_data = has_data

    async def metadata(self) -> Metadata:
        """Brokers and streams, asked for anew."""
        return await self._session.refresh()

    def events(self, *, slow_after: timedelta = timedelta(seconds=1)) -> Events:
        """What happens behind the calls from now on, to be iterated with `async for`.

        Connections that come and go, changes of the metadata, attempts made again, and what is
        slow; `liftbridge_client.events` has the types. The connections that stand come first. At
        most 1,000 events wait for a listener.

        Args:
            slow_after: What takes longer than this is slow.
        """
        return self._session.listen(slow_after.total_seconds())

    @overload
    async def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        ack_policy: Literal["leader", "all"] = "leader",
    ) -> Ack: ...

    @overload
    async def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        ack_policy: Literal["none"],
    ) -> None: ...

    async def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        ack_policy: AckPolicy = "leader",
    ) -> Ack | None:
        """Publish to a NATS subject; the first ack of any stream on it, `None` for policy none.

        Raises:
            UsageError: The value, the key, a header or the ack policy is none.
            AckTimeoutError: No stream is attached to the subject, or none answered in time.
            OutcomeUnknownError: The connection broke; the message may be stored.
            RefusedError: The stream refused it.
        """
        check_message(value, key, headers)
        response = await self._session.call(
            methods.PUBLISH_TO_SUBJECT,
            api_pb2.PublishToSubjectRequest(
                subject=subject,
                value=value,
                key=key,
                headers=headers or {},
                ackPolicy=policy_of(ack_policy),
            ),
            is_repeatable=False,
        )
        if ack_policy == "none":
            return None
        error = ack_error(response.ack)
        if error is not None:
            raise error
        return ack_of(response.ack, -1)
