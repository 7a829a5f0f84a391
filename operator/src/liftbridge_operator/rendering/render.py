"""A cluster as objects of Kubernetes."""

from liftbridge_operator.rendering import addresses, guards, monitoring, names, nats, services
from liftbridge_operator.rendering.pod import pod_template
from liftbridge_operator.rendering.revision import RENDERER, digest, spec_hash, with_revision
from liftbridge_operator.rendering.settings import config_text, refusals
from liftbridge_operator.rendering.subject import (
    Cluster,
    Held,
    Inputs,
    Object,
    Recorded,
    Rendered,
    metadata,
)
from liftbridge_operator.rendering.workload import kept_revision, record_of


def render(cluster: Cluster, inputs: Inputs) -> Rendered:
    """What a cluster consists of; the same arguments give the same objects.

    The StatefulSet is not among them (`workload.stateful_set` makes it of a template that is to be
    in force), nor is what follows from the state of the cluster: its PodDisruptionBudget
    (`guards.disruption_budget`), its identity (`identity.identity`), Secrets (`secrets`), and the
    request for a certificate (`cert_manager.certificate`).
    """
    configuration = _configuration(cluster, inputs)
    name = names.config(cluster.name, digest(configuration))
    template = pod_template(cluster, inputs, name)
    revision = digest([template, configuration])
    asked = spec_hash(cluster)
    made = Recorded(revision, asked, RENDERER, inputs.image, with_revision(template, revision))
    held = _held(inputs, made)
    kept = inputs.recorded if held is not None and inputs.recorded is not None else made
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, inputs, name),
        "immutable": True,
        "data": configuration,
    }
    rendered = Rendered(
        kept.revision,
        kept.spec_hash,
        kept.renderer,
        kept.image,
        kept.template,
        configs=(config,) if held is None else (),
        objects=tuple(_objects(cluster, inputs)),
        refusals=refusals(cluster),
        held=held,
    )
    if held is not None:
        return rendered
    template_map = kept_revision(cluster, inputs, record_of(rendered))
    return _with_configs(rendered, (*rendered.configs, template_map))


def _with_configs(rendered: Rendered, configs: tuple[Object, ...]) -> Rendered:
    return Rendered(
        rendered.revision,
        rendered.spec_hash,
        rendered.renderer,
        rendered.image,
        rendered.template,
        configs,
        rendered.objects,
        rendered.refusals,
        rendered.held,
    )


def _configuration(cluster: Cluster, inputs: Inputs) -> dict[str, str]:
    """Files of the brokers that hold no secret."""
    files = {names.CONFIG_KEY: config_text(cluster, inputs)}
    embedded = cluster.spec.nats.embedded
    if embedded is not None:
        files[names.NATS_KEY] = nats.server_text(embedded)
    return files


def _held(inputs: Inputs, made: Recorded) -> Held | None:
    """The difference that a new operator makes; None when the specification changed, or nothing."""
    recorded = inputs.recorded
    if recorded is None or recorded.spec_hash != made.spec_hash:
        return None
    if recorded.revision == made.revision:
        return None
    causes = []
    if recorded.renderer != made.renderer:
        causes.append(f"renderer {recorded.renderer} becomes {made.renderer}")
    if recorded.image != made.image:
        causes.append(f"image {recorded.image} becomes {made.image}")
    return Held(made.revision, tuple(causes or ["the operator renders it in another way"]))


def _objects(cluster: Cluster, inputs: Inputs) -> list[Object]:
    found = [guards.service_account(cluster, inputs), *services.services(cluster, inputs)]
    told = addresses.told(cluster, inputs)
    if told is not None:
        found.append(told)
    policy = guards.network_policy(cluster, inputs)
    if policy is not None:
        found.append(policy)
    return found + monitoring.monitors(cluster, inputs)
