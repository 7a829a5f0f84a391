"""Render a cluster as objects of Kubernetes."""

from dataclasses import replace
from typing import Final

from liftbridge_operator.cluster.rendering import addresses, guards, monitoring, nats, services
from liftbridge_operator.cluster.rendering.pod import pod_template
from liftbridge_operator.cluster.rendering.revision import (
    RENDERER,
    asked_before,
    asked_text,
    digest,
    steps_between,
    with_revision,
)
from liftbridge_operator.cluster.rendering.settings import config_text, refusals
from liftbridge_operator.cluster.rendering.subject import (
    Cluster,
    Held,
    Inputs,
    Object,
    Recorded,
    Rendered,
    metadata,
)
from liftbridge_operator.cluster.rendering.volumes import named_configs
from liftbridge_operator.cluster.rendering.workload import kept_revision, record_of
from liftbridge_operator.model import names

_IMAGES: Final = ("spec.version", "spec.image")
"""Fields that name the image of the brokers."""


def render(cluster: Cluster, inputs: Inputs) -> Rendered:
    """Render the objects of a cluster; the same arguments give the same objects.

    The StatefulSet is not among them (`workload.stateful_set` renders it from a template), nor are
    objects that depend on the state of the cluster: its PodDisruptionBudget
    (`guards.disruption_budget`), its identity (`identity.identity`), Secrets (`secrets`), and the
    request for a certificate (`cert_manager.certificate`).
    """
    config, made = _made(cluster, inputs)
    known = _still_meant(cluster, inputs, made)
    kept = known or made
    rendered = Rendered(
        kept.revision,
        kept.asked,
        kept.renderer,
        kept.image,
        kept.template,
        configs=(config,) if known is None else (),
        objects=tuple(_objects(cluster, inputs)),
        refusals=refusals(cluster),
        held=_held(known, made) if known is not None else None,
        causes=_causes(cluster, inputs, made) if known is None else (),
    )
    if known is not None:
        return rendered
    template_map = kept_revision(cluster, inputs, record_of(rendered), config["data"])
    return _with_configs(rendered, (*rendered.configs, template_map))


def configs_of(
    cluster: Cluster, inputs: Inputs, known: Recorded, kept: dict[str, str] | None = None
) -> tuple[Object, ...]:
    """Render the immutable ConfigMaps of a former template again, to restore them.

    The desired state of that time is rendered again. ConfigMaps that this operator renders
    differently are restored from the stored files, or left out: names are digests of contents.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering.
        known: The template.
        kept: Stored files of its configuration; None for none.
    """
    bodies = []
    named = named_configs(known.template["spec"])
    if kept is not None:
        bodies.append(_config_map(cluster, inputs, kept))
    try:
        config, made = _made(asked_before(cluster, known.asked), replace(inputs, image=known.image))
    except ValueError:
        pass
    else:
        bodies.append(config)
        if made.revision == known.revision:
            named |= {names.revision(cluster.name, known.revision)}
            bodies.append(kept_revision(cluster, inputs, made, config["data"]))
    by_name = {body["metadata"]["name"]: body for body in bodies}
    return tuple(one for name, one in by_name.items() if name in named)


def _made(cluster: Cluster, inputs: Inputs) -> tuple[Object, Recorded]:
    """Render the ConfigMap of the configuration, and the template that names it."""
    configuration = _configuration(cluster, inputs)
    config = _config_map(cluster, inputs, configuration)
    template = pod_template(cluster, inputs, config["metadata"]["name"])
    revision = digest([template, configuration])
    made = with_revision(template, revision)
    return config, Recorded(revision, asked_text(cluster), RENDERER, inputs.image, made)


def _config_map(cluster: Cluster, inputs: Inputs, files: dict[str, str]) -> Object:
    """Render the ConfigMap of a configuration."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, inputs, names.config(cluster.name, digest(files))),
        "immutable": True,
        "data": files,
    }


def _with_configs(rendered: Rendered, configs: tuple[Object, ...]) -> Rendered:
    return Rendered(
        rendered.revision,
        rendered.asked,
        rendered.renderer,
        rendered.image,
        rendered.template,
        configs,
        rendered.objects,
        rendered.refusals,
        rendered.held,
        rendered.causes,
    )


def _configuration(cluster: Cluster, inputs: Inputs) -> dict[str, str]:
    """Render the files of the brokers that hold no secrets."""
    files = {names.CONFIG_KEY: config_text(cluster, inputs)}
    embedded = cluster.spec.nats.embedded
    if embedded is not None:
        files[names.NATS_KEY] = nats.server_text(embedded)
    return files


def _still_meant(cluster: Cluster, inputs: Inputs, made: Recorded) -> Recorded | None:
    """Return the template to keep although it would now be rendered differently; else None.

    That is the one in force, or the reverted one, as long as the desired state has not changed
    since: then only the operator has changed.
    """
    known = [one for one in (inputs.recorded, inputs.refused) if one is not None]
    if made.revision in {one.revision for one in known}:
        return None
    return next((one for one in known if not _asks_for_another(cluster, inputs, made, one)), None)


def _asks_for_another(cluster: Cluster, inputs: Inputs, made: Recorded, known: Recorded) -> bool:
    """Return whether the desired state has changed such that the template differs."""
    if known.asked == made.asked:
        return False
    try:
        former = asked_before(cluster, known.asked)
    except ValueError:
        return True
    here, there = cluster.spec, former.spec
    if (here.version, here.image) != (there.version, there.image):
        return True
    return _made(former, inputs)[1].revision != made.revision


def _causes(cluster: Cluster, inputs: Inputs, made: Recorded) -> tuple[str, ...]:
    """Return fields that each change the template in force."""
    known = inputs.recorded
    if known is None or known.revision == made.revision:
        return ()
    try:
        former = asked_before(cluster, known.asked)
    except ValueError:
        return ()
    before = replace(inputs, image=known.image)
    there = _made(former, before)[1].revision
    fields = []
    for field, changed in steps_between(former, cluster):
        if field in _IMAGES or _made(changed, before)[1].revision != there:
            fields.append(field)
    if known.image != made.image and not set(_IMAGES).intersection(fields):
        fields.append(f"image {known.image} becomes {made.image}")
    return tuple(fields)


def _held(known: Recorded, made: Recorded) -> Held:
    """Return the template that only a new operator renders differently."""
    causes = []
    if known.renderer != made.renderer:
        causes.append(f"renderer {known.renderer} becomes {made.renderer}")
    if known.image != made.image:
        causes.append(f"image {known.image} becomes {made.image}")
    return Held(made.revision, tuple(causes or ["the operator renders it in another way"]))


def _objects(cluster: Cluster, inputs: Inputs) -> list[Object]:
    bodies = [guards.service_account(cluster, inputs), *services.services(cluster, inputs)]
    advertised = addresses.advertised(cluster, inputs)
    if advertised is not None:
        bodies.append(advertised)
    policy = guards.network_policy(cluster, inputs)
    if policy is not None:
        bodies.append(policy)
    return bodies + monitoring.monitors(cluster, inputs)
