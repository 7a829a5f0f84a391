"""Finds clusters, and reads the fields of their resources.

Any field may be missing: the operator may not have reconciled the resource yet, or may have another
version. So no function here raises because of a resource's content.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from liftbridge_operator.cluster.observing.objects import Json, metadata_of
from liftbridge_operator.kube.errors import ForbiddenError, NotFoundError
from liftbridge_operator.kube.kinds import CLUSTERS, STREAMS
from liftbridge_operator.kube.port import Object
from liftbridge_operator.plugin.exits import ExitCode, PluginError
from liftbridge_operator.plugin.port import Access

NAMES_SHOWN_MAX: Final = 10


async def clusters(access: Access, namespace: str) -> list[Object]:
    """List the clusters of a namespace; of all namespaces when it is empty.

    Raises:
        PluginError: The API server does not know the resource.
    """
    try:
        return list((await access.list_all(CLUSTERS, namespace)).items)
    except NotFoundError as error:
        text = f"the API server does not know {CLUSTERS.qualified}: is the operator installed?"
        raise PluginError(text) from error


async def cluster(access: Access, namespace: str, name: str) -> Object:
    """Return one cluster; with an empty name the only one of the namespace.

    Raises:
        PluginError: There is no such cluster, or a name is required.
    """
    if name:
        try:
            return await access.get(CLUSTERS, namespace, name)
        except NotFoundError as error:
            others = await clusters(access, namespace)
            text = f"no LiftbridgeCluster {name!r} in namespace {namespace}; {_there(others)}"
            raise PluginError(text) from error
    found = await clusters(access, namespace)
    if len(found) == 1:
        return found[0]
    code = ExitCode.USAGE if found else ExitCode.REFUSED
    wanted = "name one of them" if found else "select another namespace with -n"
    raise PluginError(f"namespace {namespace}: {_there(found)}; {wanted}", code)


def _there(found: Sequence[Json]) -> str:
    names = [name_of(one) for one in found]
    if not names:
        return "there is no LiftbridgeCluster"
    more = len(names) - NAMES_SHOWN_MAX
    return (
        "there are "
        + ", ".join(names[:NAMES_SHOWN_MAX])
        + (f" and {more} more" if more > 0 else "")
    )


async def streams(access: Access, resource: Json) -> list[Object] | None:
    """List a cluster's streams, also from other readable namespaces; None if refused."""
    namespace, name = namespace_of(resource), name_of(resource)
    found: Sequence[Object] = ()
    try:
        found = (await access.list_all(STREAMS, "")).items
    except ForbiddenError:
        try:
            found = (await access.list_all(STREAMS, namespace)).items
        except ForbiddenError:
            return None
    except NotFoundError:
        return None
    return [one for one in found if _belongs(one, namespace, name)]


def _belongs(stream: Json, namespace: str, name: str) -> bool:
    reference = (stream.get("spec") or {}).get("clusterRef") or {}
    home = reference.get("namespace") or namespace_of(stream)
    return (home, reference.get("name")) == (namespace, name)


# -- fields of a resource ---------------------------------------------------------------------


def name_of(resource: Json) -> str:
    """Name of an object."""
    return str(metadata_of(resource).get("name") or "")


def namespace_of(resource: Json) -> str:
    """Namespace of an object."""
    return str(metadata_of(resource).get("namespace") or "")


def place_of(resource: Json) -> str:
    """Display name: namespace and name."""
    return f"{namespace_of(resource)}/{name_of(resource)}"


def status_of(resource: Json) -> Json:
    """Status; empty before the first pass."""
    found: Json = resource.get("status") or {}
    return found


def brokers_of(resource: Json) -> dict[str, Json]:
    """Status of the brokers, by id."""
    return {str(broker.get("id")): broker for broker in status_of(resource).get("brokers") or ()}


def condition_of(resource: Json, kind: str) -> Json:
    """Condition of this type; empty for none."""
    for condition in status_of(resource).get("conditions") or ():
        if condition.get("type") == kind:
            found: Json = condition
            return found
    return {}


def is_current(resource: Json) -> bool:
    """Return whether the status is about the current specification."""
    return status_of(resource).get("observedGeneration") == metadata_of(resource).get("generation")


def is_ready(resource: Json) -> bool:
    """Return whether the current specification is reconciled."""
    return is_current(resource) and condition_of(resource, "Ready").get("status") == "True"


def staleness(resource: Json) -> str:
    """Explain that the status is out of date; empty if it is current."""
    generation = metadata_of(resource).get("generation")
    seen = status_of(resource).get("observedGeneration", -1)
    if is_current(resource):
        return ""
    if not isinstance(seen, int) or seen < 0:
        return "no operator has reconciled this cluster yet"
    return f"the operator has not reconciled generation {generation} yet: this is of {seen}"


def summary_of(resource: Json) -> dict[str, Any]:
    """First fields of JSON documents about a cluster."""
    metadata: Mapping[str, Any] = metadata_of(resource)
    return {
        "namespace": namespace_of(resource),
        "name": name_of(resource),
        "generation": metadata.get("generation"),
        "isCurrent": is_current(resource),
    }
