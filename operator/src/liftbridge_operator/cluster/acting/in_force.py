"""ConfigMaps that the templates in force and existing pods reference.

New pods of a set use its template, restarted containers use the template of their pod, and the last
good template replaces a bad one. A pod does not start when a ConfigMap of its template was deleted,
so the operator renders the ConfigMap again from the desired state of that time. If this version of
the operator renders it differently, it takes the copy that is stored beside the template.
"""

from liftbridge_operator.cluster.acting.context import ActionContext
from liftbridge_operator.cluster.observing.objects import annotation_of, metadata_of
from liftbridge_operator.cluster.rendering import workload
from liftbridge_operator.cluster.rendering.render import configs_of
from liftbridge_operator.kube.errors import NotFoundError
from liftbridge_operator.kube.kinds import CONFIG_MAPS
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model import names


async def configs_in_force(context: ActionContext) -> list[Object]:
    """Return ConfigMaps that the set, its pods and the last good template need, where known.

    Those in `context.rendered.configs` may be missing while the desired template is in force.

    Raises:
        KubeError: A call failed.
    """
    recorded, rendered = context.inputs.recorded, context.rendered
    if recorded is None:
        return []  # no set of this resource, and no pod
    found: dict[str, Object] = {}
    known = [(recorded, workload.kept_configuration(context.reads.revision))]
    for revision in _others(context, recorded.revision):
        name = names.revision(context.cluster.name, revision)
        try:
            live = await context.kube.get(CONFIG_MAPS, context.cluster.namespace, name)
        except NotFoundError:
            continue  # the desired state of that time is lost with it
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
    """List revisions of pods and the last good one, without the revision in force."""
    assert context.reads.set is not None, "what is recorded was read from a set"
    wanted = {annotation_of(context.reads.set, names.GOOD_REVISION)}
    wanted |= {annotation_of(pod, names.REVISION) for pod in context.reads.pods}
    return sorted(wanted - {"", in_force})
