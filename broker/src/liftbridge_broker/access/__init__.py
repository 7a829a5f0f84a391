"""Who a caller is, and what it may do: principals, proofs of identity, access rules.

A deterministic core: keys, hashes and files are read by `adapters.identity`.
"""
