"""Whose an object is that has the name of one of a cluster: nothing of others is taken over."""

from liftbridge_operator.acting.context import Trouble
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.cluster import CLUSTER_KIND
from liftbridge_operator.observing.objects import is_owned_by, metadata_of
from liftbridge_operator.rendering.subject import Cluster


def foreign(live: Object, cluster: Cluster) -> Trouble | None:
    """What a person has to mend, when an object is neither of a cluster nor of its former resource.

    Of a resource of the same name that was deleted, the collector takes the object in a moment.

    Args:
        live: The object; it says of what kind it is.
        cluster: Whose it should be.
    """
    owners = metadata_of(live).get("ownerReferences") or ()
    if is_owned_by(live, cluster.uid) or any(
        (one.get("kind"), one.get("name")) == (CLUSTER_KIND, cluster.name) for one in owners
    ):
        return None
    name = f"{live['kind']} {metadata_of(live)['name']}"
    return Trouble("Conflict", {"object": name, "detail": whose(live)})


def whose(live: Object) -> str:
    """Who has an object, for people."""
    owners = metadata_of(live).get("ownerReferences") or ()
    others = " and ".join(f"{one.get('kind')} {one.get('name')}" for one in owners)
    return f"it is of {others}" if others else "it was not made by this operator"
