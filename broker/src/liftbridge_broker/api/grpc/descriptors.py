"""Descriptors of gRPC's own services, for reflection; handwritten, since no code is generated.

Sources: health.proto and reflection.proto of the grpc project; a test compares both with grpcio's.
"""

from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

_TYPES: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}

_REFLECTION: Final = {
    "ServerReflectionRequest": (
        "string host = 1",
        "oneof string file_by_filename = 3",
        "oneof string file_containing_symbol = 4",
        "oneof ExtensionRequest file_containing_extension = 5",
        "oneof string all_extension_numbers_of_type = 6",
        "oneof string list_services = 7",
    ),
    "ExtensionRequest": ("string containing_type = 1", "int32 extension_number = 2"),
    "ServerReflectionResponse": (
        "string valid_host = 1",
        "ServerReflectionRequest original_request = 2",
        "oneof FileDescriptorResponse file_descriptor_response = 4",
        "oneof ExtensionNumberResponse all_extension_numbers_response = 5",
        "oneof ListServiceResponse list_services_response = 6",
        "oneof ErrorResponse error_response = 7",
    ),
    "FileDescriptorResponse": ("repeated bytes file_descriptor_proto = 1",),
    "ExtensionNumberResponse": (
        "string base_type_name = 1",
        "repeated int32 extension_number = 2",
    ),
    "ListServiceResponse": ("repeated ServiceResponse service = 1",),
    "ServiceResponse": ("string name = 1",),
    "ErrorResponse": ("int32 error_code = 1", "string error_message = 2"),
}


def reflection_file(version: str) -> FileDescriptorProto:
    """Return the descriptor of reflection.proto, `v1` or `v1alpha`: both have the same messages."""
    package = f"grpc.reflection.{version}"
    file = FileDescriptorProto(
        name=f"grpc/reflection/{version}/reflection.proto", package=package, syntax="proto3"
    )
    for name, fields in _REFLECTION.items():
        _add_message(file, name, fields)
    file.message_type[0].oneof_decl.add(name="message_request")
    file.message_type[2].oneof_decl.add(name="message_response")
    service = file.service.add(name="ServerReflection")
    _add_method(service, package, "ServerReflectionInfo", "ServerReflection", streams=(True, True))
    return file


def health_file() -> FileDescriptorProto:
    """Return the descriptor of health.proto."""
    package = "grpc.health.v1"
    file = FileDescriptorProto(name="grpc/health/v1/health.proto", package=package, syntax="proto3")
    _add_message(file, "HealthCheckRequest", ("string service = 1",))
    response = _add_message(file, "HealthCheckResponse", ())
    response.field.add(
        name="status",
        number=1,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_ENUM,
        type_name=f".{package}.HealthCheckResponse.ServingStatus",
    )
    statuses = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        statuses.value.add(name=name, number=number)
    _add_message(file, "HealthListRequest", ())
    listing = _add_message(file, "HealthListResponse", ("repeated StatusesEntry statuses = 1",))
    listing.field[0].type_name = f".{package}.HealthListResponse.StatusesEntry"
    entry = listing.nested_type.add(name="StatusesEntry")
    entry.options.map_entry = True
    _add_field(entry, package, "string key = 1")
    _add_field(entry, package, "HealthCheckResponse value = 2")
    service = file.service.add(name="Health")
    _add_method(service, package, "Check", "HealthCheck")
    _add_method(service, package, "List", "HealthList")
    _add_method(service, package, "Watch", "HealthCheck", streams=(False, True))
    return file


def _add_message(file: FileDescriptorProto, name: str, fields: tuple[str, ...]) -> DescriptorProto:
    """Add a message whose fields are written as in a .proto file."""
    message = file.message_type.add(name=name)
    for text in fields:
        _add_field(message, file.package, text)
    return message


def _add_field(message: DescriptorProto, package: str, text: str) -> None:
    """Add a field written as `[repeated|oneof] type name = number`; a oneof is the message's."""
    *modifiers, kind, name, _equals, number = text.split()
    is_repeated = "repeated" in modifiers
    field = message.field.add(
        name=name,
        number=int(number),
        label=FieldDescriptorProto.LABEL_REPEATED
        if is_repeated
        else FieldDescriptorProto.LABEL_OPTIONAL,
        type=_TYPES.get(kind, FieldDescriptorProto.TYPE_MESSAGE),
    )
    if kind not in _TYPES:
        field.type_name = f".{package}.{kind}"
    if "oneof" in modifiers:
        field.oneof_index = 0


def _add_method(
    service: ServiceDescriptorProto,
    package: str,
    name: str,
    stem: str,
    *,
    streams: tuple[bool, bool] = (False, False),
) -> None:
    """Add a method that takes `<stem>Request` and returns `<stem>Response`."""
    method = service.method.add(
        name=name,
        input_type=f".{package}.{stem}Request",
        output_type=f".{package}.{stem}Response",
    )
    if streams[0]:
        method.client_streaming = True
    if streams[1]:
        method.server_streaming = True
