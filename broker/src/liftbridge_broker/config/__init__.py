"""Configuration: file, environment and flags become one frozen value.

`table` lists every setting, `settings` defines a row of it, `values` parses and formats single
values, `yamlfile` reads a file without trusting it, `load` merges and checks the sources, `options`
is what the rest of the broker sees, `reload` decides which changes a running broker applies.
"""
