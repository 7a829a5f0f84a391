"""NATS on asyncio: two supervised connections, and an embedded server.

nats-py does the handshake (`natspy`, `credentials`), `wire.nats` reads and writes everything after
it (`connection`), `link` keeps a connection and its subscriptions up, `messaging` is the port,
`embedded` runs nats-server as a child process.
"""
