"""The client that callers enter."""

from datetime import timedelta

from liftbridge_client import methods
from liftbridge_client.aio.session import Session
from liftbridge_client.aio.stream import Streams
from liftbridge_client.core.addresses import parse_addresses
from liftbridge_client.core.codec import POLICIES, ack_of
from liftbridge_client.model import Ack, AckPolicy, TlsFiles
from liftbridge_proto import api_pb2


def connect(
    servers: str,
    *,
    tls: TlsFiles | None = None,
    timeout: timedelta = timedelta(seconds=5),
    retry_time: timedelta = timedelta(seconds=10),
) -> "Client":
    """A client, to be entered with `async with`; nothing happens before.

    Args:
        servers: `host:port`, several with commas, optionally as a `liftbridge://` URL.
        tls: TLS of the connections; `None` is plaintext.
        timeout: How long a single call may take, waiting for an ack included.
        retry_time: How long a call that met an absent or wrong broker is made again.

    Raises:
        UsageError: An address is malformed.
    """
    return Client(parse_addresses(servers), tls=tls, timeout=timeout, retry_time=retry_time)


class Client(Session):
    """A client of a cluster; made by `connect`."""

    @property
    def streams(self) -> Streams:
        """Making, finding and removing streams."""
        return Streams(self)

    async def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes = b"",
        headers: dict[str, bytes] | None = None,
        ack_policy: AckPolicy = "leader",
    ) -> Ack | None:
        """Publish to a NATS subject; the first ack of any stream on it, `None` for policy none.

        Raises:
            AckTimeoutError: No stream is attached to the subject, or none answered in time.
            OutcomeUnknownError: The connection broke; the message may be stored.
        """
        response = await self.call(
            methods.PUBLISH_TO_SUBJECT,
            api_pb2.PublishToSubjectRequest(
                subject=subject,
                value=value,
                key=key,
                headers=headers or {},
                ackPolicy=POLICIES[ack_policy],
            ),
            is_repeatable=False,
        )
        return ack_of(response.ack, -1) if response.HasField("ack") else None
