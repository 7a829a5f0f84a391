"""The custom resources as values, such as `LiftbridgeCluster` and `Stream`.

Every field has a description, bounds and a default; `rules` of a class are checks in CEL that the
API server makes beyond types and bounds. The definitions under `deploy/crds/` and the reference are
generated from here, so each field is defined once.

A resource is read as the API server accepted it: unknown fields are ignored, since a newer
definition may have accepted them, and CEL is not evaluated a second time.

`names` has the names of the objects that belong to a cluster, `catalogue` everything that is
reported about resources, and `crds` generates the definitions.
"""
