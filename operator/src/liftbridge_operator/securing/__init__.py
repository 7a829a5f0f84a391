"""Secrets of clusters: created when missing, renewed in time, rotated step by step.

`secret_store.SecretStore` implements `reconciling.ports.Issue`. `certificates.rotation` decides the
steps; an `Issuer` makes keys; only `secret_store` writes.
"""
