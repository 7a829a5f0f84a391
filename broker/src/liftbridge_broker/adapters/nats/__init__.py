"""NATS on asyncio: two supervised connections, and an embedded server.

nats-py shakes hands (`natspy`, `credentials`), `wire.nats` reads and writes everything after that
(`connection`), `link` keeps a connection up and its subscriptions on it, `messaging` is the port,
`embedded` runs nats-server as a child process.
"""
