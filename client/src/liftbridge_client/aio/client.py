"""The asyncio client: `connect` and `Client`."""

from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Final, Literal, Self, overload

from liftbridge_client import methods
from liftbridge_client.activity import ACTIVITY_STREAM, ActivityCodec, ActivityEvent
from liftbridge_client.aio.consumers.consumers import Consumers
from liftbridge_client.aio.groups import Groups
from liftbridge_client.aio.listening import Events
from liftbridge_client.aio.session import ClientStats, Session
from liftbridge_client.aio.streams import Streams
from liftbridge_client.aio.subscription import Subscription
from liftbridge_client.core.addresses import parse_addresses
from liftbridge_client.core.arguments import checked, checked_calls
from liftbridge_client.core.codec import ack_of, policy_of
from liftbridge_client.core.message_parts import check_message
from liftbridge_client.core.refusals import ack_error
from liftbridge_client.model import (
    EPOCH,
    Ack,
    AckPolicy,
    Caller,
    ClientCertificate,
    Metadata,
    Start,
    Stop,
    TlsFiles,
    Token,
)
from liftbridge_client.quota_model import use_of
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

_PROOFS: Final = {
    data_pb2.PROOF_ANONYMOUS: "anonymous",
    data_pb2.PROOF_CERTIFICATE: "certificate",
    data_pb2.PROOF_JWT: "jwt",
    data_pb2.PROOF_TOKEN: "token",
}


@checked
def connect(
    servers: str,
    *,
    tls: TlsFiles | None = None,
    timeout: timedelta = timedelta(seconds=5),
    retry_time: timedelta = timedelta(seconds=10),
    zone: str = "",
    token: Token | None = None,
) -> "Client":
    """Create a client; `async with` connects it.

    Args:
        servers: `host:port`, several separated by commas, optionally as a `liftbridge://` URL.
        tls: TLS of the connections; `None` for plaintext.
        timeout: Limit for one attempt of a call, including the wait for an ack.
        retry_time: Limit for a whole call: connecting, all attempts at all brokers, and the
            pauses between them. With 0 there is one attempt, limited by `timeout`.
        zone: Zone of this client; reads from replicas prefer brokers in it (`clustering.zone`).
        token: Bearer token that proves who this client is; `None` for none.

    Raises:
        UsageError: An address is malformed.
    """
    addresses = parse_addresses(servers)
    session = Session(
        addresses, tls=tls, timeout=timeout, retry_time=retry_time, zone=zone, token=token
    )
    return Client(session)


@checked_calls
class Client:
    """A client of a cluster, created by `connect`.

    The constructor does no I/O and is bound to no event loop. Using a client that is not open, or
    is closed, fails immediately.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        """Connect: the first seed address that answers names all brokers.

        Raises:
            RetriableError: No seed address answers within the retry time.
            UsageError: The client is already open, or a TLS file cannot be read.
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
        """Close all connections and cancel running calls."""
        await self._session.aclose()

    @property
    def streams(self) -> Streams:
        """Create, find and delete streams."""
        return Streams(self._session)

    @property
    def consumers(self) -> Consumers:
        """Join consumer groups."""
        return Consumers(self._session)

    @property
    def groups(self) -> Groups:
        """Consumer groups, for people who look after them."""
        return Groups(self._session)

    @property
    def stats(self) -> ClientStats:
        """Counters of this client; always the same object."""
        return self._session.stats

    @property
    def has_data(self) -> bool:
        """Return whether the server has this project's calls.

        If not, it has only the original's.
        """
        return self._session.has_data

    @has_data.setter
    def has_data(self, has_data: bool) -> None:
        self._session.has_data = has_data

    async def metadata(self) -> Metadata:
        """Fetch brokers and streams."""
        return await self._session.refresh()

    async def who_am_i(self) -> Caller:
        """Ask a broker how it sees this client: address, certificate, identity, quota.

        Raises:
            UnimplementedError: The broker is the original, or an older version of this project.
        """
        response = await self._session.call(methods.WHO_AM_I, data_pb2.WhoAmIRequest())
        certificate = None
        if response.HasField("certificate"):
            certificate = ClientCertificate(
                response.certificate.common_name,
                tuple(response.certificate.alternative_names),
                EPOCH + timedelta(seconds=response.certificate.not_after_seconds),
            )
        expires = response.expires_seconds
        return Caller(
            response.broker,
            response.address,
            response.listener,
            certificate,
            response.principal,
            tuple(response.groups),
            _PROOFS.get(response.proof, ""),
            EPOCH + timedelta(seconds=expires) if expires else None,
            use_of(response.quota) if response.HasField("quota") else None,
        )

    def activity(
        self, *, start: Start | None = None, stop: Stop | None = None
    ) -> Subscription[ActivityEvent]:
        """Follow what changes about streams and groups, to iterate with `async for`.

        Each change is one message, in order, while a broker has `activity.stream.enabled` set.
        `lost_before` returns how many events are missing before a message, usually none.

        Args:
            start: Where to start; `None` is after the last event.
            stop: Where to stop; `None` is never.
        """
        stream = self.streams.get(ACTIVITY_STREAM)
        return stream.subscribe(codec=ActivityCodec(), start=start, stop=stop)

    def events(self, *, slow_after: timedelta = timedelta(seconds=1)) -> Events:
        """Return the events of this client from now on, to iterate with `async for`.

        Reports connections that are established or lost, metadata changes, retries, and slow calls
        and acks; `liftbridge_client.events` has the types. Existing connections come first. At most
        1,000 events are queued for a listener.

        Args:
            slow_after: Calls and acks that take longer than this are slow.
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
        """Publish to a NATS subject; return the first ack of a stream on it, or `None`.

        Raises:
            UsageError: The value, the key, a header or the ack policy is invalid.
            AckTimeoutError: No stream is attached to the subject, or none answered in time.
            OutcomeUnknownError: The connection broke; the message may be stored.
            RefusedError: The stream refused the message.
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
