"""The custom resources as values: `LiftbridgeCluster`, `Stream` and `StreamPipeline`.

Every field says what it means, what it may be and what it is when nothing is given; `rules` of a
class are what the API server checks beyond types and bounds, in CEL. The definitions under
`deploy/crds/` and the reference are generated from here, so a field exists once.

A resource that was read is taken as the API server let it in: unknown fields are ignored, since a
newer definition may have let them in, and CEL is not evaluated a second time.
"""
