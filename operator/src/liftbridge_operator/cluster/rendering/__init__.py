"""Render a `LiftbridgeCluster` as objects of Kubernetes, without clock or randomness.

    rendered = render(Cluster(name, namespace, uid, spec, restart), Inputs(cluster_id, image, ...))

- `rendered.revision` is the `DesiredState.revision` of the planner, `rendered.refusals` go (as
  texts) into its `config_errors`, and `rendered.held` is a template that only a new operator would
  change.
- `rendered.configs` are immutable ConfigMaps (the configuration, and the template itself, to be
  written again when a later one is bad): created before a template that names them.
- `rendered.objects` are applied unchanged: ServiceAccount, Services, NetworkPolicy, monitors, and
  the ConfigMap of `addresses`, which depends on the addresses that Kubernetes gave the Services.
- `workload.stateful_set(cluster, inputs, record, marks, replicas=, claim_bytes=)` renders the set
  from `workload.record_of(rendered)`, or from the template that `workload.read_revision` reads from
  the ConfigMap `names.revision(cluster, revision)`; `workload.read_record` returns how an existing
  set was rendered.
- `guards.disruption_budget`, `identity.identity`, `secrets`, `cert_manager.certificate` depend on
  more than the specification.

All names are defined in `model.names`.
"""
