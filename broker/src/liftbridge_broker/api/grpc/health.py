"""Health checks for load balancers and Kubernetes: `grpc.health.v1.Health`.

Follows grpc/doc/health-checking.md and health.proto. The empty service name means the whole
server.
"""

from enum import IntEnum
from typing import Final

from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.fields import read_fields, text_field
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.errors import LimitError, NotFoundError
from liftbridge_broker.wire.fields import bytes_field, varint_field

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
WHOLE_SERVER: Final = ""
PUBLIC_API: Final = "proto.API"
WATCHERS_MAX: Final = 1_000
"""Maximum number of concurrent calls of Watch; all are notified of a change in one turn."""


class ServingStatus(IntEnum):
    """Values of `HealthCheckResponse.ServingStatus`."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """Serving status of each service, for queries and watches.

    Starts with the whole server and the public API as NOT_SERVING.
    """

    def __init__(self) -> None:
        self._statuses = {
            WHOLE_SERVER: ServingStatus.NOT_SERVING,
            PUBLIC_API: ServingStatus.NOT_SERVING,
        }
        self._watchers: dict[str, dict[Call, None]] = {}
        self._watcher_count = 0

    def register(self, server: GrpcServer) -> None:
        """Serve Check, List and Watch."""
        server.unary(f"/{HEALTH_SERVICE}/Check", self._check)
        server.unary(f"/{HEALTH_SERVICE}/List", self._list)
        server.streaming(f"/{HEALTH_SERVICE}/Watch", self._watch)
        for name in ("Check", "List", "Watch"):
            # Probes have no identity (grpc/doc/health-checking.md).
            server.open_to_all(f"/{HEALTH_SERVICE}/{name}")

    def status(self, service: str) -> ServingStatus:
        """Return the status of a service, SERVICE_UNKNOWN if it has none."""
        return self._statuses.get(service, ServingStatus.SERVICE_UNKNOWN)

    def set_serving(self, *, is_serving: bool) -> None:
        """Set every service to SERVING or NOT_SERVING."""
        status = ServingStatus.SERVING if is_serving else ServingStatus.NOT_SERVING
        for service in self._statuses:
            self.set_status(service, status)

    def set_status(self, service: str, status: ServingStatus) -> None:
        """Set the status of one service and notify its watchers if it changed."""
        if self._statuses.get(service) == status:
            return
        self._statuses[service] = status
        for call in list(self._watchers.get(service, ())):
            call.send_message(_response(status))

    def _check(self, call: Call, request: bytes) -> None:
        """Answer with the current status; NOT_FOUND for an unknown service."""
        service = text_field(read_fields(request), 1)
        if service not in self._statuses:
            raise NotFoundError(f"unknown service {service!r}")
        call.reply(_response(self._statuses[service]))

    def _list(self, call: Call, _request: bytes) -> None:
        """Answer with all statuses (`map<string, HealthCheckResponse>` in field 1)."""
        entries = [
            bytes_field(1, b"\x0a" + _sized(name.encode()) + b"\x12" + _sized(_response(status)))
            for name, status in sorted(self._statuses.items())
        ]
        call.reply(b"".join(entries))

    def _watch(self, call: Call) -> None:
        """Answer with the current status and each change, until the client leaves."""

        def on_messages(messages: list[bytes]) -> None:
            call.on_messages = _ignore
            service = text_field(read_fields(messages[0]), 1)
            if self._watcher_count >= WATCHERS_MAX:
                raise LimitError(f"{WATCHERS_MAX} calls already watch the health of this broker")
            self._watcher_count += 1
            watchers = self._watchers.setdefault(service, {})
            watchers[call] = None

            def on_cancel() -> None:
                self._watcher_count -= 1
                del watchers[call]
                if not watchers:
                    self._watchers.pop(service, None)

            call.on_cancel = on_cancel
            call.send_message(_response(self.status(service)))

        call.on_messages = on_messages
        call.expect_request()


def _ignore(_messages: list[bytes]) -> None:
    """Drop messages after the one request."""


def _sized(value: bytes) -> bytes:
    """Prefix a short value with its length."""
    assert len(value) < 128
    return bytes((len(value),)) + value


def _response(status: ServingStatus) -> bytes:
    """`HealthCheckResponse`: the status in field 1."""
    return varint_field(1, status)
