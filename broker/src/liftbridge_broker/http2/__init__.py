"""HTTP/2 (RFC 9113) and gRPC framing of a server as a core without I/O.

`connection.Connection` takes received bytes and the time, and returns events and bytes to send. The
asyncio side is `liftbridge_broker.api.grpc.transport`.
"""
