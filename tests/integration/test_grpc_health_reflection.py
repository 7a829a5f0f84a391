"""Health checking and reflection, asked by grpcio's own stubs."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from liftbridge_broker.api.grpc.descriptors import health_file, reflection_file
from liftbridge_broker.api.grpc.health import HEALTH_SERVICE, Health, ServingStatus
from liftbridge_broker.api.grpc.reflection import Reflection
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.errors import InvalidRequestError
from liftbridge_proto import api_pb2
from liftbridge_testkit.grpc_echo import eventually
from liftbridge_testkit.grpc_raw import raw

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
async def server(health: Health) -> AsyncIterator[tuple[GrpcServer, str]]:
    """A server with health and reflection; the method of the public API is never called."""
    server = GrpcServer()
    health.register(server)
    server.unary("/proto.API/FetchMetadata", lambda call, _request: call.finish(12))
    Reflection(server)
    port = await server.start("127.0.0.1", 0)
    yield server, f"127.0.0.1:{port}"
    await server.close()
    assert health._watchers == {}


@pytest.fixture
async def stub(server: tuple[GrpcServer, str]) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    async with aio.insecure_channel(server[1]) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def asked(service: str) -> health_pb2.HealthCheckRequest:
    """A question after one service."""
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", "proto.API"])
async def test_check_follows_what_is_set(
    stub: health_pb2_grpc.HealthStub, health: Health, service: str
) -> None:
    assert (await stub.Check(asked(service))).status == NOT_SERVING
    health.set_serving(is_serving=True)
    assert (await stub.Check(asked(service))).status == SERVING
    health.set_serving(is_serving=False)
    assert (await stub.Check(asked(service))).status == NOT_SERVING


async def test_check_of_an_unknown_service_is_not_found(stub: health_pb2_grpc.HealthStub) -> None:
    with pytest.raises(aio.AioRpcError) as refused:
        await stub.Check(asked("no.Such"))
    assert refused.value.code() == StatusCode.NOT_FOUND


async def test_list_names_every_service(stub: health_pb2_grpc.HealthStub, health: Health) -> None:
    health.set_status("proto.API", ServingStatus.SERVING)
    answer = await stub.List(health_pb2.HealthListRequest())
    assert {name: each.status for name, each in answer.statuses.items()} == {
        "": NOT_SERVING,
        "proto.API": SERVING,
    }


async def test_watch_tells_the_status_and_every_change(
    stub: health_pb2_grpc.HealthStub, health: Health
) -> None:
    watch = stub.Watch(asked("proto.API"))
    assert (await watch.read()).status == NOT_SERVING
    health.set_serving(is_serving=True)
    assert (await watch.read()).status == SERVING
    health.set_serving(is_serving=True)
    health.set_serving(is_serving=False)
    assert (await watch.read()).status == NOT_SERVING
    watch.cancel()
    await eventually(lambda: not health._watchers)


async def test_watch_of_an_unknown_service_waits_for_it(
    stub: health_pb2_grpc.HealthStub, health: Health
) -> None:
    watch = stub.Watch(asked("later.Service"))
    assert (await watch.read()).status == SERVICE_UNKNOWN
    health.set_status("later.Service", ServingStatus.SERVING)
    assert (await watch.read()).status == SERVING
    watch.cancel()


@pytest.mark.parametrize("request_bytes", [b"\x0a\x05ab", b"\x0b", b"\x0a\x01\xff", b"\x80"])
async def test_malformed_question_is_refused(
    server: tuple[GrpcServer, str], request_bytes: bytes
) -> None:
    async with aio.insecure_channel(server[1]) as channel:
        for method in ("Check", "Watch"):
            call = raw(channel).unary_stream(f"/{HEALTH_SERVICE}/{method}")(request_bytes)
            with pytest.raises(aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() == StatusCode.INVALID_ARGUMENT


async def reflect(
    address: str, *requests: reflection_pb2.ServerReflectionRequest, version: str = "v1alpha"
) -> list[reflection_pb2.ServerReflectionResponse]:
    """Ask on one stream."""
    async with aio.insecure_channel(address) as channel:
        method = raw(channel).stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        return [answer async for answer in method(iter(requests))]


Request = reflection_pb2.ServerReflectionRequest


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_services_are_listed(server: tuple[GrpcServer, str], version: str) -> None:
    (answer,) = await reflect(server[1], Request(list_services="*"), version=version)
    assert [service.name for service in answer.list_services_response.service] == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "proto.API",
    ]
    assert answer.original_request == Request(list_services="*")


@pytest.mark.parametrize(
    "symbol",
    ["proto.API", "proto.API.FetchMetadata", "proto.Message", "proto.Message.HeadersEntry"],
)
async def test_file_of_a_symbol_comes_with_its_imports(
    server: tuple[GrpcServer, str], symbol: str
) -> None:
    (answer,) = await reflect(server[1], Request(file_containing_symbol=symbol, host="h"))
    assert answer.valid_host == "h"
    files = [
        FileDescriptorProto.FromString(each)
        for each in answer.file_descriptor_response.file_descriptor_proto
    ]
    assert files[0].name == api_pb2.DESCRIPTOR.name
    known = {file.name for file in files}
    assert all(set(file.dependency) <= known for file in files)


async def test_unknown_names_are_answered_one_by_one(server: tuple[GrpcServer, str]) -> None:
    answers = await reflect(
        server[1],
        Request(file_containing_symbol="no.Such"),
        Request(file_by_filename="no.proto"),
        Request(all_extension_numbers_of_type="no.Such"),
        Request(file_containing_extension=reflection_pb2.ExtensionRequest(containing_type="x")),
        Request(),
        Request(all_extension_numbers_of_type="proto.Message"),
        Request(file_by_filename="grpc/health/v1/health.proto"),
    )
    codes = [answer.error_response.error_code for answer in answers]
    assert codes == [5, 5, 5, 5, 3, 0, 0]
    assert answers[5].all_extension_numbers_response.base_type_name == "proto.Message"
    assert len(answers[6].file_descriptor_response.file_descriptor_proto) == 1


async def test_malformed_reflection_request_is_refused(server: tuple[GrpcServer, str]) -> None:
    async with aio.insecure_channel(server[1]) as channel:
        path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        call = raw(channel).stream_stream(path)(iter([b"\x07"]))
        with pytest.raises(aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() == StatusCode.INVALID_ARGUMENT


async def test_reflection_is_off_unless_turned_on() -> None:
    server = GrpcServer()
    port = await server.start("127.0.0.1", 0)
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await raw(channel).unary_unary(path)(b"")
    assert refused.value.code() == StatusCode.UNIMPLEMENTED
    await server.close()


def test_service_without_a_known_descriptor_is_listed_only() -> None:
    server = GrpcServer()
    server.unary("/test.Unknown/Call", lambda call, request: call.reply(request))
    reflection = Reflection(server, descriptor_pool.DescriptorPool())
    listed = reflection_pb2.ServerReflectionResponse.FromString(
        reflection.answer(Request(list_services="*").SerializeToString())
    )
    assert "test.Unknown" in {each.name for each in listed.list_services_response.service}
    with pytest.raises(InvalidRequestError):
        reflection.answer(b"\xff")


def shape(file: FileDescriptorProto) -> FileDescriptorProto:
    """A descriptor without what differs between copies of one interface."""
    copied = FileDescriptorProto()
    copied.CopyFrom(file)
    copied.ClearField("name")
    copied.ClearField("options")
    for message in copied.message_type:
        for each in (message, *message.nested_type):
            for field in each.field:
                field.ClearField("json_name")
    return copied


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (health_file(), health_pb2.DESCRIPTOR),
        (reflection_file("v1alpha"), reflection_pb2.DESCRIPTOR),
    ],
)
def test_written_descriptors_are_those_of_grpc(ours: FileDescriptorProto, theirs: object) -> None:
    assert isinstance(theirs, type(api_pb2.DESCRIPTOR))
    generated = FileDescriptorProto.FromString(theirs.serialized_pb)
    assert shape(ours) == shape(generated)


async def test_grpcio_can_build_messages_from_what_is_shown(server: tuple[GrpcServer, str]) -> None:
    def describe() -> list[str]:
        with grpc.insecure_channel(server[1]) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = descriptor_pool.DescriptorPool(database)
            service = pool.FindServiceByName("proto.API")
            return [method.name for method in service.methods]

    shown = await asyncio.to_thread(describe)
    assert shown == [method.name for method in api_pb2.DESCRIPTOR.services_by_name["API"].methods]
