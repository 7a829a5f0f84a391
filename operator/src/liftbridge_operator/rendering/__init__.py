"""A `LiftbridgeCluster` as objects of Kubernetes, made without clock or chance.

    rendered = render(Cluster(name, namespace, uid, spec, restart), Inputs(cluster_id, image, ...))

- `rendered.revision` is the `Wanted.revision` of the planner, `rendered.refusals` go (as texts)
  into its `config_errors`, and `rendered.held` is what only a new operator would change.
- `rendered.configs` are immutable ConfigMaps (the configuration, and the template itself, to be
  written again when a later one is bad): created before a template that names them.
- `rendered.objects` are applied as they stand: ServiceAccount, Services, NetworkPolicy, monitors,
  and the ConfigMap of `addresses`, which follows what Kubernetes gave the Services.
- `workload.stateful_set(cluster, inputs, record, marks, replicas=, claim_bytes=)` makes the set of
  `workload.record_of(rendered)`, or of what `workload.read_revision` reads from the ConfigMap
  `names.revision(cluster, revision)`; `workload.read_record` tells how a set that exists was made.
- `guards.disruption_budget`, `identity.identity`, `secrets`, `cert_manager.certificate` follow from
  more than the specification.

Names stand in `names` and nowhere else.
"""
