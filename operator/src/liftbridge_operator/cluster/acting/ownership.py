"""Ownership of objects that have a name of the cluster: foreign objects are never adopted."""

from liftbridge_operator.cluster.acting.context import Trouble
from liftbridge_operator.cluster.observing.objects import is_owned_by, metadata_of
from liftbridge_operator.cluster.rendering.subject import Cluster
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.cluster import CLUSTER_KIND


def foreign(live: Object, cluster: Cluster) -> Trouble | None:
    """Report a conflict when neither the resource nor a former one of its name owns an object.

    The garbage collector soon deletes objects of a deleted resource of the same name.

    Args:
        live: The object, with its kind.
        cluster: The expected owner.
    """
    owners = metadata_of(live).get("ownerReferences") or ()
    if is_owned_by(live, cluster.uid) or any(
        (owner.get("kind"), owner.get("name")) == (CLUSTER_KIND, cluster.name) for owner in owners
    ):
        return None
    name = f"{live['kind']} {metadata_of(live)['name']}"
    return Trouble("Conflict", {"object": name, "detail": owner_text(live)})


def owner_text(live: Object) -> str:
    """Describe the owner of an object in human-readable form."""
    owners = metadata_of(live).get("ownerReferences") or ()
    others = " and ".join(f"{owner.get('kind')} {owner.get('name')}" for owner in owners)
    return f"it belongs to {others}" if others else "this operator did not create it"
