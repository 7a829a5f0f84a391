"""Configuration: file, environment and flags become one frozen value.

`settings` is the table of every key, `values` reads and shows single values, `yamlfile` reads a
file without trusting it, `load` puts the sources together and checks them, `options` is what the
rest of the broker sees, `reload` tells what a running broker may take over.
"""
