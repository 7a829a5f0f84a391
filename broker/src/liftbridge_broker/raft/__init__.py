"""Raft without I/O: the agreement of the metadata voters on one log of commands.

Shaped like etcd/raft: messages and time go in, and a `Ready` comes out; the host makes it durable
and reports that. Follows the Raft paper and the dissertation of D. Ongaro (cited as `Raft` and
`Diss.`).
"""
