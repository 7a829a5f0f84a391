"""One pass over one `LiftbridgeUser`: observe, decide, report the status, act.

The status lists what an action adds to the brokers before it does so, so that whatever happens in
between is taken away again. A pass writes nothing when nothing changed.
"""

from dataclasses import replace
from typing import Any, Final

from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.certificates.port import Issuer
from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.kube.errors import KubeError, NotFoundError
from liftbridge_operator.kube.finalizers import write_finalizer
from liftbridge_operator.kube.kinds import SECRETS, USERS
from liftbridge_operator.kube.port import Fence, Kube, Object
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.reconciler import Key, RequeueAfter
from liftbridge_operator.streams.feed import wall_ms
from liftbridge_operator.streams.observation import Refused
from liftbridge_operator.streams.port import (
    BrokersError,
    RefusedError,
    StreamBoard,
    StreamEvents,
)
from liftbridge_operator.users.actions import (
    AddFinalizer,
    ChangeRules,
    OfResource,
    RemoveFinalizer,
)
from liftbridge_operator.users.clusters import Cluster, Clusters
from liftbridge_operator.users.decide import REFUSED_SECONDS, Decision, change_of, decide_user
from liftbridge_operator.users.deletion import decide_deletion
from liftbridge_operator.users.marks import FINALIZER, mark_of
from liftbridge_operator.users.observation import Offer, Resource, Seen
from liftbridge_operator.users.offers import offer_of
from liftbridge_operator.users.performing import Performer
from liftbridge_operator.users.port import UserBrokers
from liftbridge_operator.users.resources import resource_of
from liftbridge_operator.users.rules import Rules, text_of
from liftbridge_operator.users.secrets import observed
from liftbridge_operator.users.status import is_same, status_of

SILENT_SECONDS: Final = 5.0


class UserReconciler:
    """See `process.reconciler.Reconciler`."""

    def __init__(
        self,
        kube: Kube,
        clusters: Clusters,
        issuer: Issuer,
        events: StreamEvents,
        clock: Clock,
        *,
        fence: Fence,
        board: StreamBoard,
    ) -> None:
        """Start with an empty memory.

        Args:
            kube: The API server.
            clusters: Looks at clusters.
            issuer: Makes certificates.
            events: Writes Kubernetes Events.
            clock: Time.
            fence: Checked right before each change at the brokers.
            board: Receives conditions.
        """
        self._kube = kube
        self._clusters = clusters
        self._issuer = issuer
        self._events = events
        self._clock = clock
        self._board = board
        self._performer = Performer(kube, issuer, fence)
        self._refused: dict[Key, tuple[str, str, float]] = {}
        self._changed: dict[Key, float] = {}
        self._synced: dict[Key, int] = {}

    async def close(self) -> None:
        """Close the connections to all brokers."""
        await self._clusters.close()

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """See `Reconciler`."""
        try:
            body = await self._kube.get(USERS, key.namespace, key.name)
        except NotFoundError:
            await self._gone(key)
            return None
        resource = resource_of(body)
        cluster = await self._clusters.enter(key, body)
        await self._clusters.look(cluster, self._changed.get(key, float("-inf")))
        secret = await self._secret(resource)
        seen = self._seen(key, resource, cluster, secret)
        decision = _decide(resource, seen)
        action = decision.action
        if isinstance(action, ChangeRules) and action.granted and cluster.brokers is not None:
            fault = await self._fault_of(cluster, resource, action)
            if fault is not None:
                return await self._refuse(key, body, resource, seen, decision, fault)
        body = await self._write_status(key, body, resource, seen, decision)
        is_end = isinstance(action, RemoveFinalizer)
        if decision.event is not None and (is_end or _is_new(resource, decision)):
            await self._events.record(body, *decision.event)
        if action is None:
            return RequeueAfter(decision.requeue_seconds)
        return await self._act(key, body, resource, cluster, seen, decision, secret)

    async def _gone(self, key: Key) -> None:
        for known in (self._refused, self._changed, self._synced):
            known.pop(key, None)
        self._board.forget(key)
        await self._clusters.leave(key)

    # -- observe ------------------------------------------------------------------------------

    async def _secret(self, resource: Resource) -> Object | None:
        try:
            return await self._kube.get(SECRETS, resource.namespace, resource.secret_name)
        except NotFoundError:
            return None

    def _seen(self, key: Key, resource: Resource, cluster: Cluster, secret: Object | None) -> Seen:
        now, now_s = self._clock.now(), wall_ms(self._clock) // 1_000
        looked = cluster.seen(resource.namespace, now)
        before = self._refused.get(key)
        refused = Refused(before[0], before[1], now >= before[2]) if before is not None else None
        seen = Seen(looked, now_s, older=self._clusters.older(key, cluster), refused=refused)
        snapshot = cluster.snapshot
        if snapshot is None or not looked.is_heard:
            return seen
        spec, offer = resource.spec, Offer()
        if spec is not None:
            offer = offer_of(spec, cluster.spec, looked.name, cluster.ca, cluster.authority)
        mark = mark_of(resource.uid)
        return replace(
            seen,
            is_on=snapshot.is_on,
            rules=snapshot.rules.get(resource.principal, {}),
            limits=snapshot.quotas.get(resource.principal),
            tokens=tuple(
                token
                for token in snapshot.tokens
                if mark in token.groups and not 0 < token.expires_s <= now_s
            ),
            offer=offer,
            secret=observed(secret, resource, offer, self._issuer) if spec is not None else None,
        )

    # -- report -------------------------------------------------------------------------------

    async def _write_status(
        self, key: Key, body: Object, resource: Resource, seen: Seen, decision: Decision
    ) -> Object:
        """Write the status if it changes; return the resource afterwards."""
        before: dict[str, Any] = body.get("status", {})
        status = status_of(resource, seen, decision, before=before, now_ms=wall_ms(self._clock))
        if key in self._synced:
            status["lastSyncTime"] = moment_text(self._synced[key])
        self._board.set_conditions(key, status["conditions"])
        if is_same(status, before):
            return body
        metadata = body["metadata"]
        return await self._kube.apply_status(
            {
                "apiVersion": USERS.api_version,
                "kind": USERS.kind,
                "metadata": {name: metadata[name] for name in ("name", "namespace", "uid")},
                "status": status,
            }
        )

    # -- act ----------------------------------------------------------------------------------

    async def _fault_of(
        self, cluster: Cluster, resource: Resource, action: ChangeRules
    ) -> RefusedError | None:
        """Return why brokers would refuse rules, before the status lists them as own ones."""
        assert cluster.brokers is not None
        fault = await _refusal(cluster.brokers, resource.principal, action.granted)
        if fault is None or len(action.granted) == 1:
            return fault
        for key, operations in action.granted.items():
            one = {key: operations}
            of_one = await _refusal(cluster.brokers, resource.principal, one)
            if of_one is not None:
                return of_one
        return fault

    async def _act(
        self,
        key: Key,
        body: Object,
        resource: Resource,
        cluster: Cluster,
        seen: Seen,
        decision: Decision,
        secret: Object | None,
    ) -> RequeueAfter | None:
        action = decision.action
        assert action is not None
        try:
            if isinstance(action, OfResource):
                is_added = isinstance(action, AddFinalizer)
                await write_finalizer(self._kube, USERS, body, FINALIZER, is_added=is_added)
                return RequeueAfter(0)
            if cluster.brokers is None:
                return RequeueAfter(SILENT_SECONDS)
            async with cluster.room:
                event = await self._performer.perform(cluster, resource, seen, action, secret)
        except (RefusedError, KubeError) as error:
            if isinstance(error, KubeError) and refusal_of(error) is None:
                raise
            return await self._refuse(key, body, resource_of(body), seen, decision, error)
        except BrokersError:
            self._changed[key] = self._clock.now()
            return RequeueAfter(SILENT_SECONDS)
        self._refused.pop(key, None)
        self._changed[key] = self._clock.now()
        self._synced[key] = wall_ms(self._clock)
        if event is not None:
            await self._events.record(body, *event)
        return RequeueAfter(0)

    async def _refuse(
        self,
        key: Key,
        body: Object,
        resource: Resource,
        seen: Seen,
        decision: Decision,
        error: Exception,
    ) -> RequeueAfter:
        """Remember a refusal, and report it."""
        assert decision.action is not None
        what, due = change_of(decision.action), self._clock.now() + REFUSED_SECONDS
        self._refused[key] = (what, str(error), due)
        refused = replace(seen, refused=Refused(what, str(error), is_due=False))
        await self._write_status(key, body, resource, refused, _decide(resource, refused))
        return RequeueAfter(REFUSED_SECONDS)


async def _refusal(brokers: UserBrokers, principal: str, granted: Rules) -> RefusedError | None:
    """Return why brokers would refuse rules; None if they would not, or do not answer."""
    try:
        await brokers.change_rules(principal, granted=granted, revoked={}, is_dry_run=True)
    except RefusedError as error:
        return RefusedError(f"access, {text_of(granted)}: {error}")
    except BrokersError:
        return None  # the change itself meets it, too
    return None


def _decide(resource: Resource, seen: Seen) -> Decision:
    decide = decide_deletion if resource.is_deleting else decide_user
    return decide(resource, seen)


def _is_new(resource: Resource, decision: Decision) -> bool:
    """Return whether a condition differs from the status, so that each Event is written once."""
    return any(
        (before := resource.conditions.get(kind)) is None or before.reason != claim.reason
        for kind, claim in decision.claims.items()
    )
