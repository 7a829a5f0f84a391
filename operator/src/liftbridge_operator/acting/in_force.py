"""What present pods are made of: ConfigMaps that must be there whenever one of them starts again.

Pods of a set start of its template, containers of a pod of the one that it was made of, and a
template that is bad gives way to the last good one. Somebody may have deleted what they name; a
pod whose ConfigMap is missing hangs. So it is rendered again, of what was asked for then; what this
operator makes otherwise is kept beside the template.
"""

from liftbridge_operator.acting.context import ActionContext
from liftbridge_operator.kube.errors import NotFoundError
from liftbridge_operator.kube.kinds import CONFIG_MAPS
from liftbridge_operator.kube.port import Object
from liftbridge_operator.observing.objects import annotation_of, metadata_of
from liftbridge_operator.rendering import names, workload
from liftbridge_operator.rendering.render import configs_of


async def configs_in_force(context: ActionContext) -> list[Object]:
    """ConfigMaps that the set, its pods and the last good template need, as far as they are known.

    Those among `context.rendered.configs` may be left out while what is asked for is in force.

    Raises:
        KubeError: A call failed.
    """
    recorded, rendered = context.inputs.recorded, context.rendered
    if recorded is None:
        return []  # no set of ours, and no pod
    found: dict[str, Object] = {}
    known = [(recorded, workload.kept_configuration(context.reads.revision))]
    for revision in _others(context, recorded.revision):
        name = names.revision(context.cluster.name, revision)
        try:
            live = await context.kube.get(CONFIG_MAPS, context.cluster.namespace, name)
        except NotFoundError:
            continue  # with it goes what was asked for
        kept = workload.read_kept(live)
        if kept is not None:
            known.append((kept, workload.kept_configuration(live)))
    for one, files in known:
        bodies = rendered.configs
        if one.revision != rendered.revision or not bodies:
            bodies = configs_of(context.cluster, context.inputs, one, files)
        found |= {str(metadata_of(body)["name"]): body for body in bodies}
    return list(found.values())


def _others(context: ActionContext, in_force: str) -> list[str]:
    """Revisions of pods, and the one that the set may go back to, beside the one in force."""
    assert context.reads.set is not None, "what is recorded was read from a set"
    wanted = {annotation_of(context.reads.set, names.GOOD_REVISION)}
    wanted |= {annotation_of(pod, names.REVISION) for pod in context.reads.pods}
    return sorted(wanted - {"", in_force})
