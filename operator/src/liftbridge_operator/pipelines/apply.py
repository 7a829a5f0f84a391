"""Apply, maintain and prune the objects of a pipeline.

An object is compared first and written only when it differs; foreign changes, additions and
removals are reverted. Foreign objects are never touched, whatever their names.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.acting.whole import Kept, fought_for, keep_whole, shown
from liftbridge_operator.cluster.observing.objects import (
    MANAGER,
    is_owned_by,
    label_of,
    metadata_of,
)
from liftbridge_operator.kube.errors import (
    FencedError,
    KubeError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import (
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Kind,
    kind_of,
)
from liftbridge_operator.kube.port import Kube, Object, Preconditions
from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.names import Reason
from liftbridge_operator.model.names import MANAGED_BY
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.subject import Means

WORKLOADS: Final = (DEPLOYMENTS, JOBS, CRON_JOBS)
PRUNED: Final = (*WORKLOADS, SERVICES, ROLE_BINDINGS)
"""Kinds with objects that are rendered only for some specifications."""

KINDS: Final = (SERVICE_ACCOUNTS, CONFIG_MAPS, *PRUNED)


@dataclass(slots=True)
class Applied:
    """Outcome of applying the objects of a pipeline.

    Attributes:
        workload: The object that runs the job, after the write; None if it was not applied.
        obstacle: Problem that a user has to fix; None for none.
        drift: Objects with their reverted fields.
    """

    workload: Object | None = None
    obstacle: Claim | None = None
    drift: list[tuple[str, str]] = field(default_factory=list)


class HinderedError(Exception):
    """A problem that a user has to fix.

    Attributes:
        claim: Claim of the condition that reports it.
    """

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim.reason)
        self.claim = claim


@contextmanager
def about(what: str) -> Iterator[None]:
    """Convert a refusal within the block into `HinderedError` with the name of the object.

    Raises:
        HinderedError: A request was refused.
        KubeError: The API server is unavailable, or this process no longer leads.
    """
    try:
        yield
    except KubeError as error:
        is_away = isinstance(error, UnavailableError | FencedError)
        if is_away and refusal_of(error) is None:
            raise
        values = {"object": what, "detail": error.message}
        raise HinderedError(Claim(Reason.REFUSED, values)) from error


async def pods_of(kube: Kube, namespace: str, pipeline: str) -> Sequence[Object]:
    """List pods of a pipeline, without executors.

    Raises:
        HinderedError: They may not be listed.
        KubeError: The API server is unavailable.
    """
    with about(PODS.qualified):
        return (await kube.list_all(PODS, namespace, selector=f"{names.PIPELINE}={pipeline}")).items


def kinds_of(means: Means) -> Sequence[Kind]:
    """Return kinds of pipeline objects; without an executor role, no right to RoleBindings."""
    return tuple(kind for kind in KINDS if means.executor_role or kind != ROLE_BINDINGS)


@dataclass(frozen=True, slots=True)
class Applier:
    """Context for applying the objects of a pipeline.

    Attributes:
        kinds: Kinds to list.
        kept: Objects as last applied; updated here.
        now_ms: Start of the pass.
        former: The last reported workload, if the specification may have changed since; else
            None.
    """

    kube: Kube
    kinds: Sequence[Kind]
    kept: dict[str, Kept]
    now_ms: int
    former: str | None = None


async def apply_all(applier: Applier, wanted: Sequence[Object], uid: str) -> Applied:
    """Apply all rendered objects, and delete obsolete ones.

    Args:
        applier: Context of the pass.
        wanted: All rendered objects; the last one runs the job.
        uid: UID of the pipeline, which owns them.

    Raises:
        KubeError: The API server is unavailable, or this process no longer leads.
    """
    done = Applied()
    try:
        await _bring(applier, wanted, uid, done)
    except HinderedError as hindered:
        done.obstacle, done.workload = hindered.claim, None
    return done


async def _bring(applier: Applier, wanted: Sequence[Object], uid: str, done: Applied) -> None:
    """Apply and prune, as `apply_all`.

    Raises:
        HinderedError: The named object is unchanged, and nothing further was done.
    """
    present = await _present(applier, wanted[-1])
    rendered = {(kind_of(one), str(metadata_of(one)["name"])) for one in wanted}
    # Obsolete objects go first: two workloads of one pipeline would run side by side.
    for (kind, name), live in present.items():
        if kind in PRUNED and (kind, name) not in rendered and _is_mine(live, uid):
            try:
                with about(shown(live)):
                    await _delete(applier.kube, kind, live)
            except HinderedError as hindered:
                done.obstacle = hindered.claim
                if kind in WORKLOADS:
                    raise
    for body in wanted:
        known = present.get((kind_of(body), str(metadata_of(body)["name"])))
        with about(shown(body)):
            done.workload = await _apply(applier, body, known, uid, done)


async def _present(applier: Applier, workload: Object) -> dict[tuple[Kind, str], Object]:
    """Read the pipeline's objects by kind and name; those of a former one also without label."""
    metadata = metadata_of(workload)
    namespace, pipeline = str(metadata["namespace"]), label_of(workload, names.PIPELINE)
    found: dict[tuple[Kind, str], Object] = {}
    for kind in applier.kinds:
        selector = f"{names.PIPELINE}={pipeline}"
        with about(kind.qualified):
            listed = await applier.kube.list_all(kind, namespace, selector=selector)
        found |= {(kind, str(metadata_of(item)["name"])): item for item in listed.items}
    if applier.former is None:
        return found
    workload_kind, _, workload_name = applier.former.partition("/")
    for kind in set(applier.kinds).intersection(PRUNED):
        name = names.owned(pipeline)
        if kind == JOBS:  # the name of a Job depends on what it ran
            name = workload_name if workload_kind == JOBS.kind else ""
        if name and (kind, name) not in found:
            with about(f"{kind.kind}/{name}"):
                live = await _unlabelled(applier.kube, kind, namespace, name)
            found |= {(kind, name): live} if live is not None else {}
    return found


async def _delete(kube: Kube, kind: Kind, live: Object) -> None:
    metadata = live["metadata"]
    if metadata.get("deletionTimestamp"):
        return
    try:
        await kube.delete(
            kind, metadata["namespace"], metadata["name"], preconditions=Preconditions.of(live)
        )
    except NotFoundError:
        return


async def _apply(
    applier: Applier, body: Object, live: Object | None, uid: str, done: Applied
) -> Object:
    """Apply one object, and return it after the write.

    Raises:
        HinderedError: It is a foreign object, or another manager contests it.
        KubeError: A call failed.
    """
    kind, metadata, name = kind_of(body), metadata_of(body), shown(body)
    if live is None:
        where = str(metadata["namespace"]), str(metadata["name"])
        live = await _unlabelled(applier.kube, kind, *where)
    if live is None:
        return await applier.kube.apply(body, force=True)
    if not _is_mine(live, uid):
        raise HinderedError(Claim(Reason.CONFLICT, {"object": name}))
    rival = fought_for(applier.kept, name, applier.now_ms)
    if rival is not None:
        raise HinderedError(Claim(Reason.CONTESTED, {"object": name, "detail": rival.text}))
    if kind == ROLE_BINDINGS and live.get("roleRef") != body["roleRef"]:
        await _delete(applier.kube, kind, live)  # the role of a binding is immutable
        return await applier.kube.apply(body, force=True)
    whole = await keep_whole(applier.kube, applier.kept, body, live, now_ms=applier.now_ms)
    if whole.found:
        done.drift.append((name, ", ".join(dict.fromkeys(one.field for one in whole.found))))
    return whole.live


async def _unlabelled(kube: Kube, kind: Kind, namespace: str, name: str) -> Object | None:
    """Read an object of this name that was not listed by its label."""
    try:
        return await kube.get(kind, namespace, name)
    except NotFoundError:
        return None


def _is_mine(live: Object, uid: str) -> bool:
    """Return whether an object belongs to a pipeline: by its owner, or as a managed orphan."""
    is_orphan = not metadata_of(live).get("ownerReferences")
    return is_owned_by(live, uid) or (is_orphan and label_of(live, MANAGER) == MANAGED_BY)
