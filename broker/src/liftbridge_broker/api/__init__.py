"""The gRPC services of the broker and the asyncio side of its HTTP/2 server."""
