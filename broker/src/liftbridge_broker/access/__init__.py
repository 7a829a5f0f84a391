"""Who a caller is: principals, and the forms in which callers prove theirs.

A deterministic core: keys, hashes and files are read by `adapters.identity`.
"""
