"""Server reflection: shows the services to tools such as grpcurl; off by default.

Serves `grpc.reflection.v1` and `v1alpha`, which differ in name only
(grpc/doc/server-reflection.md). Only files that a served service needs are shown.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool

from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.descriptors import health_file, reflection_file
from liftbridge_broker.api.grpc.fields import read_fields, text_field
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.wire.fields import bytes_field, varint_field

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

VERSIONS: Final = ("v1", "v1alpha")
REFLECTION_SERVICES: Final = tuple(
    f"grpc.reflection.{version}.ServerReflection" for version in VERSIONS
)

# Field numbers of ServerReflectionRequest.
_HOST: Final = 1
_FILE_BY_FILENAME: Final = 3
_FILE_CONTAINING_SYMBOL: Final = 4
_FILE_CONTAINING_EXTENSION: Final = 5
_ALL_EXTENSION_NUMBERS_OF_TYPE: Final = 6
_LIST_SERVICES: Final = 7


class Reflection:
    """Descriptors of all services of a server, by file name and by symbol."""

    def __init__(self, server: GrpcServer, pool: DescriptorPool | None = None) -> None:
        """Serve reflection on `server`, for itself and for all methods registered before.

        Args:
            server: Server whose methods are shown.
            pool: Pool with the descriptors of its services; the process-wide one if None.
        """
        for service in REFLECTION_SERVICES:
            server.streaming(f"/{service}/ServerReflectionInfo", self._serve)
        self._services = server.services
        self._files: dict[str, FileDescriptorProto] = {}
        self._symbols: dict[str, str] = {}
        self._types: set[str] = set()
        own = [health_file(), *(reflection_file(version) for version in VERSIONS)]
        shown = {f"{file.package}.{file.service[0].name}": file for file in own}
        for service in self._services:
            if service in shown:
                self._add(shown[service])
            else:
                self._add_from(pool or Default(), service)

    def _add_from(self, pool: DescriptorPool, service: str) -> None:
        """Show the file that defines a service, and its imports; no-op for an unknown service."""
        try:
            pending: list[FileDescriptor] = [pool.FindFileContainingSymbol(service)]
        except KeyError:
            return
        while pending:
            file = pending.pop()
            if file.name not in self._files:
                self._add(FileDescriptorProto.FromString(file.serialized_pb))
                pending.extend(file.dependencies)

    def _add(self, file: FileDescriptorProto) -> None:
        """Show one file."""
        self._files[file.name] = file
        prefix = f"{file.package}." if file.package else ""
        for service in file.service:
            self._symbols[prefix + service.name] = file.name
            for method in service.method:
                self._symbols[f"{prefix}{service.name}.{method.name}"] = file.name
        for enum in file.enum_type:
            self._symbols[prefix + enum.name] = file.name
        pending: list[tuple[str, DescriptorProto]] = [(prefix, each) for each in file.message_type]
        while pending:
            scope, message = pending.pop()
            name = scope + message.name
            self._types.add(name)
            for each in (name, *(f"{name}.{enum.name}" for enum in message.enum_type)):
                self._symbols[each] = file.name
            pending.extend((f"{name}.", nested) for nested in message.nested_type)

    def _serve(self, call: Call) -> None:
        """Answer each request of a stream with one response, in order."""

        def on_messages(messages: list[bytes]) -> None:
            call.authorize(messages)
            call.go_on(self._answers(call, messages))

        call.on_messages = on_messages
        call.on_half_close = call.finish

    def _answers(self, call: Call, requests: list[bytes]) -> Iterator[None]:
        """Answer requests in steps, between the turns of other connections."""
        for request in requests:
            call.send_message(self.answer(request))
            yield

    def answer(self, request: bytes) -> bytes:
        """Return the `ServerReflectionResponse` to a `ServerReflectionRequest`.

        Raises:
            TooLargeError: See `read_fields`.
            InvalidRequestError: The request is not a protobuf message.
        """
        fields = read_fields(request)
        host = text_field(fields, _HOST).encode()
        return bytes_field(1, host) + bytes_field(2, request) + self._part(fields)

    def _part(self, fields: list[tuple[int, int | bytes]]) -> bytes:
        """Return the part of a response that depends on the request."""
        asked = {number for number, _ in fields}
        part = _error(GrpcStatus.INVALID_ARGUMENT, "message_request: not set, or unknown")
        if _LIST_SERVICES in asked:
            names = [bytes_field(1, bytes_field(1, name.encode())) for name in self._services]
            part = bytes_field(6, b"".join(names))
        elif _FILE_BY_FILENAME in asked:
            part = self._file(text_field(fields, _FILE_BY_FILENAME))
        elif _FILE_CONTAINING_SYMBOL in asked:
            symbol = text_field(fields, _FILE_CONTAINING_SYMBOL)
            part = self._file(self._symbols.get(symbol, symbol))
        elif _ALL_EXTENSION_NUMBERS_OF_TYPE in asked:
            name = text_field(fields, _ALL_EXTENSION_NUMBERS_OF_TYPE)
            part = _error(GrpcStatus.NOT_FOUND, f"unknown type {name!r}")
            if name in self._types:  # proto3 messages have no extensions
                part = bytes_field(5, bytes_field(1, name.encode()))
        elif _FILE_CONTAINING_EXTENSION in asked:
            part = _error(GrpcStatus.NOT_FOUND, "no such extension")
        return part

    def _file(self, name: str) -> bytes:
        """Build `file_descriptor_response` with a file and all its imports, or an error."""
        if name not in self._files:
            return _error(GrpcStatus.NOT_FOUND, f"no file for {name!r}")
        needed = [name]
        for each in needed:
            needed += [other for other in self._files[each].dependency if other not in needed]
        files = [bytes_field(1, self._files[each].SerializeToString()) for each in needed]
        return bytes_field(4, b"".join(files))


def _error(code: int, text: str) -> bytes:
    """Build `error_response`."""
    return bytes_field(7, varint_field(1, code) + bytes_field(2, text.encode()))
