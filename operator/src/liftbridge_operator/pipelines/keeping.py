"""Objects of a pipeline are brought to what was rendered, kept so, and taken away when not needed.

An object is compared first and written only when it differs. Quantities come back in other words
than they were sent in, so they are compared by what they amount to. Objects of somebody else are
never touched, whatever their names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from liftbridge_operator.catalogue.claim import Claim
from liftbridge_operator.catalogue.names import Reason
from liftbridge_operator.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from liftbridge_operator.kube.intent import differences
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
from liftbridge_operator.model.values import size_bytes
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.subject import Means

WORKLOADS: Final = (DEPLOYMENTS, JOBS, CRON_JOBS)
PRUNED: Final = (*WORKLOADS, SERVICES, ROLE_BINDINGS)
"""Kinds of which some are rendered only for some specifications."""

KINDS: Final = (SERVICE_ACCOUNTS, CONFIG_MAPS, *PRUNED)


@dataclass(slots=True)
class Brought:
    """What came of it.

    Attributes:
        workload: The object that runs the job, as it is now.
        obstacle: What a person has to mend; nothing further was done then.
        drift: Objects with the fields that somebody else had changed.
    """

    workload: Object | None = None
    obstacle: Claim | None = None
    drift: list[tuple[str, str]] = field(default_factory=list)


class ForeignError(Exception):
    """An object of this name belongs to somebody else; the text is its name."""


async def pods_of(kube: Kube, namespace: str, pipeline: str) -> Sequence[Object]:
    """Pods of a pipeline, but for executors.

    Raises:
        KubeError: The call failed.
    """
    return (await kube.list_all(PODS, namespace, selector=f"{names.PIPELINE}={pipeline}")).items


def kinds_of(means: Means) -> Sequence[Kind]:
    """Kinds of objects that pipelines may have: without a role to give, no right is asked for."""
    return tuple(one for one in KINDS if means.executor_role or one != ROLE_BINDINGS)


async def bring(
    kube: Kube, wanted: Sequence[Object], uid: str, kinds: Sequence[Kind] = KINDS
) -> Brought:
    """Bring all objects to what was rendered, and take away what is not.

    Args:
        kube: Where.
        wanted: All objects; the last one runs the job.
        uid: Of the pipeline, which owns them.
        kinds: Kinds that are looked for.

    Raises:
        KubeError: A call failed, but for what a person has to mend.
    """
    done = Brought()
    metadata = wanted[-1]["metadata"]
    selector = f"{names.PIPELINE}={metadata['labels'][names.PIPELINE]}"
    present: dict[tuple[Kind, str], Object] = {}
    for kind in kinds:
        found = await kube.list_all(kind, metadata["namespace"], selector=selector)
        present |= {(kind, str(one["metadata"]["name"])): one for one in found.items}
    rendered = {(kind_of(one), str(one["metadata"]["name"])) for one in wanted}
    # What is not wanted goes first: two workloads of one pipeline would run side by side.
    for (kind, name), live in present.items():
        if kind in PRUNED and (kind, name) not in rendered and _is_mine(live, uid):
            await _take_away(kube, kind, live)
    for body in wanted:
        shown = f"{body['kind']}/{body['metadata']['name']}"
        try:
            known = present.get((kind_of(body), body["metadata"]["name"]))
            done.workload = await _bring(kube, body, known, uid, done)
        except ForeignError:
            done.obstacle = Claim(Reason.CONFLICT, {"object": shown})
        except (InvalidError, ForbiddenError, ConflictError) as error:
            values = {"object": shown, "detail": error.message}
            done.obstacle = Claim(Reason.REFUSED, values)
        if done.obstacle is not None:
            done.workload = None
            return done
    return done


async def _take_away(kube: Kube, kind: Kind, live: Object) -> None:
    metadata = live["metadata"]
    if metadata.get("deletionTimestamp"):
        return
    try:
        await kube.delete(
            kind, metadata["namespace"], metadata["name"], preconditions=Preconditions.of(live)
        )
    except (NotFoundError, ConflictError):
        return  # somebody is at it: the next pass looks again


async def _bring(kube: Kube, body: Object, live: Object | None, uid: str, done: Brought) -> Object:
    """The object as it is then.

    Raises:
        ForeignError: It belongs to somebody else.
        KubeError: A call failed.
    """
    kind = kind_of(body)
    if live is None:
        live = await _unlabelled(kube, kind, body)
    if live is None:
        return await kube.apply(body, force=True)
    if not _is_mine(live, uid):
        raise ForeignError(body["metadata"]["name"])
    if kind == JOBS:
        return await _switch(kube, body, live)
    found = differences(live, alike(live, body))
    if not found:
        return live
    fields = ", ".join(dict.fromkeys(one.field for one in found if one.manager))
    if fields:
        done.drift.append((f"{body['kind']}/{body['metadata']['name']}", fields))
    if kind == ROLE_BINDINGS and live.get("roleRef") != body["roleRef"]:
        await _take_away(kube, kind, live)  # a binding keeps its role for good
    return await kube.apply(body, force=True)


async def _switch(kube: Kube, body: Object, live: Object) -> Object:
    """A single run goes on as it began; whether it goes on at all may change."""
    metadata, suspend = live["metadata"], body["spec"]["suspend"]
    if live["spec"].get("suspend", False) == suspend:
        return live
    return await kube.patch(
        JOBS,
        metadata["namespace"],
        metadata["name"],
        {"spec": {"suspend": suspend}},
        preconditions=Preconditions(metadata["uid"]),
    )


async def _unlabelled(kube: Kube, kind: Kind, body: Object) -> Object | None:
    """An object of this name that was not listed by its label."""
    try:
        return await kube.get(kind, body["metadata"]["namespace"], body["metadata"]["name"])
    except NotFoundError:
        return None


def _is_mine(live: Object, uid: str) -> bool:
    return any(
        one.get("uid") == uid and one.get("controller")
        for one in live["metadata"].get("ownerReferences") or ()
    )


def alike(live: Any, intent: Any) -> Any:
    """The intent with quantities in the words that the API server has for the same amounts."""
    if isinstance(intent, dict) and isinstance(live, dict):
        made = {name: alike(live.get(name), value) for name, value in intent.items()}
        for name in ("requests", "limits"):
            if isinstance(intent.get(name), dict) and isinstance(live.get(name), dict):
                made[name] = _amounts(live[name], intent[name])
        return made
    if isinstance(intent, list) and isinstance(live, list) and len(live) == len(intent):
        return [alike(*pair) for pair in zip(live, intent, strict=True)]
    return intent


def _amounts(live: Mapping[str, Any], intent: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: live[name] if name in live and _amount(live[name]) == _amount(value) else value
        for name, value in intent.items()
    }


def _amount(quantity: object) -> float:
    """What a quantity amounts to; NaN, which equals nothing, for none."""
    text = str(quantity)
    try:
        return float(text[:-1]) / 1_000 if text.endswith("m") else _plain(text)
    except ValueError:
        return float("nan")


def _plain(text: str) -> float:
    return float(text) if text.replace(".", "", 1).isdecimal() else float(size_bytes(text))
