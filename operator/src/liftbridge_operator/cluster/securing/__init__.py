"""Secrets of clusters: created when missing, renewed in time, rotated step by step.

`secret_store.SecretStore` implements `cluster.reconciling.ports.Issue`.
`cluster.certificates.rotation` decides the steps; an `Issuer` makes keys; only `secret_store`
writes.
"""
