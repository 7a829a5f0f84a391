"""One pass over one `Stream`: observe, decide, report the status, act.

The status announces an action before it happens, so that a reader never takes an old status for the
new one. A pass writes nothing when nothing changed.
"""

from dataclasses import replace
from typing import Any, Final

from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.kube.errors import ForbiddenError, KubeError, NotFoundError
from liftbridge_operator.kube.finalizers import write_finalizer
from liftbridge_operator.kube.kinds import NAMESPACES, STREAMS
from liftbridge_operator.kube.port import Fence, Kube, Object
from liftbridge_operator.model.catalogue.names import StreamConditionType
from liftbridge_operator.model.stream import ManagementPolicy
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.reconciler import Key, RequeueAfter
from liftbridge_operator.streams.actions import (
    AddFinalizer,
    Create,
    Delete,
    Mark,
    OfResource,
    OfStream,
    RemoveFinalizer,
)
from liftbridge_operator.streams.changing import change
from liftbridge_operator.streams.decide import (
    REFUSED_SECONDS,
    Decision,
    change_of,
    decide_stream,
)
from liftbridge_operator.streams.deletion import decide_deletion
from liftbridge_operator.streams.feed import Cluster, ClusterKey, StreamFeed, wall_ms
from liftbridge_operator.streams.marks import FINALIZER, holder_of, mark_of
from liftbridge_operator.streams.observation import (
    Ask,
    ObservedStream,
    Refused,
    Resource,
    Rival,
    Seen,
)
from liftbridge_operator.streams.port import (
    BrokersError,
    ChangedError,
    RefusedError,
    SilentError,
    StreamBoard,
    StreamEvents,
)
from liftbridge_operator.streams.resources import resource_of
from liftbridge_operator.streams.status import WAIT_REPORTED_MS, is_same, status_of

SILENT_SECONDS: Final = 5.0
CHANGED_SECONDS: Final = 1.0
DONE_SECONDS: Final = 12.0
"""Time until the next pass after a change, by when the feed should have shown it."""
ASKS_MAX: Final = 3


class StreamReconciler:
    """See `process.reconciler.Reconciler`."""

    def __init__(
        self,
        kube: Kube,
        feed: StreamFeed,
        events: StreamEvents,
        clock: Clock,
        *,
        fence: Fence,
        board: StreamBoard,
        is_namespaced: bool,
    ) -> None:
        """Start with an empty memory.

        Args:
            kube: The API server.
            feed: Polls clusters.
            events: Writes Kubernetes Events.
            clock: Time.
            fence: Checked right before each change at the brokers.
            board: Receives conditions.
            is_namespaced: Whether the operator watches some namespaces only: then no resource
                gets a finalizer.
        """
        self._kube = kube
        self._feed = feed
        self._events = events
        self._clock = clock
        self._fence = fence
        self._board = board
        self._is_namespaced = is_namespaced
        self._refused: dict[Key, tuple[str, str, float]] = {}
        self._changed: dict[Key, float] = {}
        self._synced: dict[Key, int] = {}
        self._adopted: dict[Key, bool] = {}

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """See `Reconciler`."""
        try:
            body = await self._kube.get(STREAMS, key.namespace, key.name)
        except NotFoundError:
            await self._gone(key)
            return None
        resource = resource_of(body)
        cluster = await self._enter(key, resource)
        seen = self._seen(key, resource, cluster)
        decision = await self._decide(resource, seen, cluster)
        if isinstance(decision.action, Create) and not cluster.is_looked_at_for(key):
            # A stream that another client created since the last poll would count as created here.
            self._feed.hasten(cluster)
            return RequeueAfter(CHANGED_SECONDS)
        body = await self._write_status(key, body, resource, decision, seen.stream)
        if decision.event is not None and _is_new(resource, decision):
            await self._events.record(body, *decision.event)
        if decision.action is None:
            return self._again(resource, decision)
        if isinstance(decision.action, OfStream) and self._is_old(key, cluster):
            return RequeueAfter(CHANGED_SECONDS)
        return await self._act(key, body, resource, cluster, decision, seen)

    def _is_old(self, key: Key, cluster: Cluster) -> bool:
        """Return whether the last poll predates the last change for the resource."""
        looked = cluster.snapshot.now_s if cluster.snapshot is not None else 0.0
        return looked <= self._changed.get(key, -1.0)

    async def _enter(self, key: Key, resource: Resource) -> Cluster:
        spec = resource.spec
        # An unreadable resource belongs to no cluster: the empty name does not exist.
        ref = ClusterKey(key.namespace, "")
        manages = False
        if spec is not None:
            ref = ClusterKey(spec.cluster_ref.namespace or key.namespace, spec.cluster_ref.name)
            manages = spec.management_policy is ManagementPolicy.MANAGE
        return await self._feed.enter(key, ref, resource.stream_name, resource.age, manages=manages)

    def _seen(self, key: Key, resource: Resource, cluster: Cluster) -> Seen:
        now = self._clock.now()
        cluster_seen = cluster.seen(resource.namespace, now)
        before = self._refused.get(key)
        refused = Refused(before[0], before[1], now >= before[2]) if before is not None else None
        return Seen(
            cluster_seen,
            cluster.stream(resource.stream_name) if cluster_seen.is_heard else None,
            is_namespaced=self._is_namespaced,
            older=cluster.older(key) if key in cluster.watches else "",
            refused=refused,
        )

    async def _decide(self, resource: Resource, seen: Seen, cluster: Cluster) -> Decision:
        """Decide, and look up the facts that the decision asks for."""
        decide = decide_deletion if resource.is_deleting else decide_stream
        for _ in range(ASKS_MAX):
            decision = decide(resource, seen)
            if decision.ask is None:
                return decision
            match decision.ask:
                case Ask.HOLDER:
                    seen = replace(seen, holder=await self._holder(resource, seen.stream, cluster))
                case Ask.NAMESPACE:
                    seen = replace(seen, is_ending=await self._is_ending(resource.namespace))
                case Ask.MESSAGES:
                    seen = replace(seen, messages=await _messages(cluster, seen.stream))
        return decide(resource, seen)

    async def _holder(
        self, resource: Resource, stream: ObservedStream | None, cluster: Cluster
    ) -> Rival | None:
        """Return the resource that a mark names, if it still manages the stream."""
        assert stream is not None
        named = holder_of(stream.owner)
        if named is None:
            return Rival(stream.owner, is_older=True)
        if not cluster.lets_in(named.namespace):
            return None
        key = f"{named.namespace}/{named.name}"
        try:
            body = await self._kube.get(STREAMS, named.namespace, named.name)
        except NotFoundError:
            return None
        except ForbiddenError:
            return Rival(key, is_older=True)
        other = resource_of(body)
        if other.uid != named.uid or not _is_about(other, resource):
            return None
        return Rival(key, is_older=other.age < resource.age)

    async def _is_ending(self, namespace: str) -> bool:
        try:
            body = await self._kube.get(NAMESPACES, "", namespace)
        except NotFoundError:
            return True
        except ForbiddenError:
            return False
        return bool(body["metadata"].get("deletionTimestamp")) or (
            body.get("status", {}).get("phase") == "Terminating"
        )

    async def _gone(self, key: Key) -> None:
        """Forget a deleted resource: its stream stays, and another one may adopt it."""
        for known in (self._refused, self._changed, self._synced, self._adopted):
            known.pop(key, None)
        self._board.forget(key)
        left = await self._feed.leave(key)
        if left is None:
            return
        cluster, name = left
        stream = cluster.stream(name)
        named = holder_of(stream.owner) if stream is not None else None
        if stream is None or named is None or cluster.brokers is None:
            return
        if (named.namespace, named.name) == (key.namespace, key.name):
            await self._unmark(key.namespace, cluster, stream, stream.owner)

    # -- report -------------------------------------------------------------------------------

    async def _write_status(
        self,
        key: Key,
        body: Object,
        resource: Resource,
        decision: Decision,
        stream: ObservedStream | None,
    ) -> Object:
        """Write the status if it changes; return the resource afterwards."""
        before: dict[str, Any] = body.get("status", {})
        status = status_of(
            resource,
            decision,
            stream if stream is not None and _is_reported(resource, stream) else None,
            before=before,
            now_ms=wall_ms(self._clock),
        )
        if key in self._synced:
            status["lastSyncTime"] = moment_text(self._synced[key])
        status["adopted"] = self._adopted.get(key, resource.is_adopted)
        self._board.set_conditions(key, status["conditions"])
        if is_same(status, before):
            return body
        metadata = body["metadata"]
        return await self._kube.apply_status(
            {
                "apiVersion": STREAMS.api_version,
                "kind": STREAMS.kind,
                "metadata": {name: metadata[name] for name in ("name", "namespace", "uid")},
                "status": status,
            }
        )

    def _again(self, resource: Resource, decision: Decision) -> RequeueAfter | None:
        if decision.requeue_seconds:
            return RequeueAfter(decision.requeue_seconds)
        ready = resource.conditions.get(StreamConditionType.READY)
        if ready is None or ready.status != "True":
            return RequeueAfter(WAIT_REPORTED_MS / 1_000 + 1)
        return None

    # -- act ----------------------------------------------------------------------------------

    async def _act(
        self,
        key: Key,
        body: Object,
        resource: Resource,
        cluster: Cluster,
        decision: Decision,
        seen: Seen,
    ) -> RequeueAfter | None:
        action = decision.action
        assert action is not None
        try:
            if isinstance(action, OfResource):
                await self._finalizer(body, resource, cluster, action, seen.stream)
                return RequeueAfter(0)
            if cluster.brokers is None:
                return RequeueAfter(SILENT_SECONDS)
            async with cluster.room:
                self._fence.check(key.namespace)
                event = await change(cluster.brokers, resource, action)
        except (RefusedError, KubeError) as error:
            if isinstance(error, KubeError) and refusal_of(error) is None:
                raise
            due = self._clock.now() + REFUSED_SECONDS
            self._refused[key] = (change_of(action), str(error), due)
            refused = replace(seen, refused=Refused(change_of(action), str(error), is_due=False))
            decision = await self._decide(resource_of(body), refused, cluster)
            await self._write_status(key, body, resource, decision, seen.stream)
            return RequeueAfter(REFUSED_SECONDS)
        except ChangedError:
            self._feed.hasten(cluster)
            return RequeueAfter(CHANGED_SECONDS)
        except SilentError:
            return RequeueAfter(SILENT_SECONDS)
        self._refused.pop(key, None)
        self._changed[key] = self._clock.now()
        self._synced[key] = wall_ms(self._clock)
        if isinstance(action, Create | Mark):
            self._adopted[key] = isinstance(action, Mark) and action.is_adopted
        self._feed.hasten(cluster)
        if event is not None:
            await self._events.record(body, *event)
        if isinstance(action, Delete) and resource.has_finalizer:
            await self._finalizer(body, resource, cluster, RemoveFinalizer(), None)
        return RequeueAfter(DONE_SECONDS)

    async def _unmark(
        self, namespace: str, cluster: Cluster, stream: ObservedStream, mine: str
    ) -> None:
        """Remove a mark, best effort: the mark of a deleted resource is known to be void."""
        if cluster.brokers is None:
            return
        self._fence.check(namespace)
        try:
            await cluster.brokers.mark(stream.name, stream.stream_id, expected=mine, owner="")
        except BrokersError:
            return

    async def _finalizer(
        self,
        body: Object,
        resource: Resource,
        cluster: Cluster,
        action: OfResource,
        stream: ObservedStream | None,
    ) -> None:
        """Write the finalizers of the resource as read, with the operator's added or removed."""
        if isinstance(action, RemoveFinalizer) and action.stream_id and stream is not None:
            mine = mark_of(resource.namespace, resource.name, resource.uid)
            await self._unmark(resource.namespace, cluster, stream, mine)
        is_added = isinstance(action, AddFinalizer)
        await write_finalizer(self._kube, STREAMS, body, FINALIZER, is_added=is_added)


async def _messages(cluster: Cluster, stream: ObservedStream | None) -> int | None:
    if stream is None or cluster.brokers is None:
        return None
    try:
        return await cluster.brokers.count_messages(stream)
    except BrokersError:
        return None


def _is_about(other: Resource, resource: Resource) -> bool:
    """Return whether another resource manages the same stream."""
    if other.spec is None or resource.spec is None:
        return True
    if other.spec.management_policy is ManagementPolicy.OBSERVE:
        return False
    refs = [
        (one.spec.cluster_ref.namespace or one.namespace, one.spec.cluster_ref.name)
        for one in (other, resource)
        if one.spec is not None
    ]
    return refs[0] == refs[1] and other.stream_name == resource.stream_name


def _is_reported(resource: Resource, stream: ObservedStream) -> bool:
    """Return whether the status reports a stream: the resource's own, or an observed one."""
    mine = mark_of(resource.namespace, resource.name, resource.uid)
    is_watched = (
        resource.spec is not None and resource.spec.management_policy is ManagementPolicy.OBSERVE
    )
    return is_watched or stream.owner == mine


def _is_new(resource: Resource, decision: Decision) -> bool:
    """Return whether an Event reports a reason that the conditions did not report before."""
    for kind in (StreamConditionType.DELETION_BLOCKED, StreamConditionType.READY):
        claim = decision.claims.get(kind)
        if claim is not None:
            before = resource.conditions.get(kind)
            return before is None or before.reason != claim.reason
    return False
