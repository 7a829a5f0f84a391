"""The Secrets of clusters: made when they are missing, renewed in time, exchanged step by step.

`secret_store.SecretStore` implements `reconciling.ports.Issue`. What to do is decided in
`certificates.rotation`; keys are made by an `Issuer`; only `secret_store` writes.
"""
