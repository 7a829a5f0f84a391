"""One pass over a cluster: observe, decide, report the status, act once.

The status is written before the action: it already names the disruption that is about to start, and
reports an observed generation at once. Both writes carry the resource version that was read, so of
two processes that both act as leader only one succeeds. The loss of the memory that a process keeps
between passes costs only time.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from liftbridge_operator.cluster.acting.context import ActionContext, Done, Trouble
from liftbridge_operator.cluster.acting.perform import perform
from liftbridge_operator.cluster.acting.supply import (
    supply,
    supply_configs,
    supply_monitors,
)
from liftbridge_operator.cluster.observing.answers import Answers, ask
from liftbridge_operator.cluster.observing.assembly import askable, observation_of, pods_of
from liftbridge_operator.cluster.observing.desired import (
    Specification,
    memory_of,
    recorded_of,
    specification_of,
)
from liftbridge_operator.cluster.observing.failing import failed_revision
from liftbridge_operator.cluster.observing.objects import metadata_of, uid_of
from liftbridge_operator.cluster.observing.reads import Reads, read
from liftbridge_operator.cluster.observing.times import moment_text, next_opening_ms
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning import refusals
from liftbridge_operator.cluster.planning.bootstrap import conflict
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Decision
from liftbridge_operator.cluster.planning.roll import remember
from liftbridge_operator.cluster.planning.suspension import size_after
from liftbridge_operator.cluster.planning.view import View
from liftbridge_operator.cluster.reconciling.inputs import (
    Subject,
    cluster_id_of,
    cluster_of,
    desired_in,
    foreign_parts,
    inputs_of,
    lost_claims,
    odd_of,
    pending_claims,
    served_of,
    surroundings,
    unresized_claims,
)
from liftbridge_operator.cluster.reconciling.ports import (
    Board,
    Connect,
    Events,
    ImageOf,
    Issue,
    Issued,
    Itself,
)
from liftbridge_operator.cluster.reconciling.reached import until_reached
from liftbridge_operator.cluster.reconciling.remembered import (
    Moment,
    Pass,
    Remembered,
    held_of,
    is_first_miss,
    keep_consent,
    moved_of,
    note_done,
    note_refusals,
    note_status_write,
    reason_of,
    refuse,
    until_done,
    until_issued,
    would_grow,
)
from liftbridge_operator.cluster.reconciling.tidying import tidy
from liftbridge_operator.cluster.rendering.render import render
from liftbridge_operator.cluster.reporting.account import Account
from liftbridge_operator.cluster.reporting.events import Happened, of_action
from liftbridge_operator.cluster.reporting.status import (
    News,
    says_the_same,
    status_of,
    unread_status,
    with_status,
)
from liftbridge_operator.cluster.reporting.transitions import behind, of_status
from liftbridge_operator.kube.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnansweredError,
)
from liftbridge_operator.kube.intent import Difference
from liftbridge_operator.kube.kinds import CLUSTERS
from liftbridge_operator.kube.port import Fence, Kube, Object
from liftbridge_operator.model import names
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.cluster_status import DriftEntry, RestartStatus
from liftbridge_operator.process.reconciler import Key, RequeueAfter

SOON: Final = RequeueAfter(1.0)
"""Requeue time after an action, and during a wait for a state that only brokers report."""
WATCHFUL: Final = RequeueAfter(2.5)
QUIET: Final = RequeueAfter(10.0)
"""Interval of passes over a cluster at rest, since brokers send no events."""
NOTE_MAX: Final = 256
NEEDED: Final = ("ServiceAccount/", "ConfigMap/")
"""Objects without which no pod starts."""
MAY_EXIST: Final = frozenset({"Conflict", "Kept", "MissingRights", "NotInstalled", "Refused"})
"""Reasons of `MonitoringReady` after which obsolete monitoring objects may exist."""

log = structlog.get_logger("liftbridge.operator")


class ClusterReconciler:
    """Reconciles all clusters, with one pass at a time for each; see the module."""

    def __init__(
        self,
        kube: Kube,
        *,
        fence: Fence,
        connect: Connect,
        issue: Issue,
        image_of: ImageOf,
        clock_ms: Callable[[], int],
        fresh_id: Callable[[], str],
        itself: Itself,
        board: Board | None = None,
        events: Events | None = None,
        act_fence: Fence | None = None,
    ) -> None:
        """Start without memory of any cluster.

        Args:
            kube: The API server.
            fence: Checks that this process leads.
            connect: Makes connections to brokers.
            issue: Issues and renews Secrets.
            image_of: Images of versions.
            clock_ms: Time of day, Unix milliseconds.
            fresh_id: Generates random ids for new clusters.
            itself: The operator.
            board: Receives all conditions.
            events: Writes Kubernetes Events.
            act_fence: Checked before each action, if leadership is not enough; else `fence`.
        """
        self._kube = kube
        self._fence = fence
        self._act_fence = act_fence or fence
        self._connect = connect
        self._issue = issue
        self._image_of = image_of
        self._clock_ms = clock_ms
        self._fresh_id = fresh_id
        self._itself = itself
        self._board = board
        self._events = events
        self._known: dict[Key, Remembered] = {}

    async def close(self) -> None:
        """Close all connections to brokers."""
        known, self._known = self._known, {}
        for one in known.values():
            if one.connection is not None:
                await one.connection.close()

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """Run one pass; see `process.reconciler.Reconciler`."""
        now_ms = self._clock_ms()
        try:
            resource = await self._kube.get(CLUSTERS, key.namespace, key.name)
        except NotFoundError:
            await self._forget(key)
            return None
        known = await self._remembered(key, resource)
        known.count_by(now_ms)
        try:
            found = await self._look(known, resource, now_ms)
        except ForbiddenError as error:
            return await self._write_unread(key, resource, error.message, now_ms)
        if is_first_miss(known, found):
            return SOON
        decision = await self._feasible(known, found)
        decision = until_issued(decision, found, known.memory)
        decision = until_reached(decision, found.subject, known.memory, now_ms)
        decision = until_done(decision, known, now_ms)
        known.memory = decision.memory
        context = self._context(known, found)
        # Pods start with the Secrets that exist, though these cannot be renewed.
        is_lacking = found.lacking is not None and found.issued.is_waiting
        is_lacking = is_lacking and not isinstance(decision.action, act.SetBudget)
        if found.trouble is not None or context is None or is_lacking:
            decision = replace(decision, action=None)
        await self._supply_monitors(key, known, found, context)
        return await self._write_and_act(key, known, found, decision, context)

    # -- observe ------------------------------------------------------------------------------

    async def _remembered(self, key: Key, resource: Object) -> Remembered:
        known = self._known.get(key)
        uid = uid_of(resource)
        if known is None or known.uid != uid:
            await self._forget(key)
            known = self._known[key] = Remembered(uid, memory_of(resource))
        return known

    async def _forget(self, key: Key) -> None:
        known = self._known.pop(key, None)
        if known is not None and known.connection is not None:
            await known.connection.close()
        if known is not None and self._board is not None:
            self._board.forget(key)

    async def _look(self, known: Remembered, resource: Object, now_ms: int) -> Pass:
        """Read all inputs, and derive the observation."""
        reads = await read(self._kube, resource, known.memory.waits)
        given = specification_of(resource)
        trouble = foreign_parts(reads)
        fresh = self._fresh_id()
        try:
            cluster_id = cluster_id_of(reads, fresh)
        except ValueError as error:
            reads = replace(reads, identity=None)
            values = {"object": f"ConfigMap {names.identity(reads.name)}", "detail": str(error)}
            trouble, cluster_id = Trouble("Conflict", values), fresh
        subject = self._subject(reads, given, cluster_id)
        issued = await self._issued(reads, subject, known, now_ms)
        await self._record_events(resource, *issued.happened)
        answers = await self._ask(known, reads, subject, issued)
        known.served = served_of(reads, answers)
        desired = await desired_in(self._kube, reads, given, subject, answers, now_ms)
        odd = odd_of(reads, subject)
        seen = observation_of(
            reads, answers, desired, now_ms=now_ms, fresh_cluster_id=fresh, odd=odd
        )
        return Pass(reads, given, subject, issued, answers, seen, trouble, issued.trouble)

    def _subject(self, reads: Reads, given: Specification, cluster_id: str) -> Subject | None:
        if given.spec is None:
            return None
        cluster = cluster_of(reads, given.spec)
        inputs = inputs_of(
            reads,
            given.spec,
            image=self._image_of(given.spec),
            cluster_id=cluster_id,
            itself=self._itself,
        )
        return Subject(cluster, inputs, render(cluster, inputs))

    async def _issued(
        self, reads: Reads, subject: Subject | None, known: Remembered, now_ms: int
    ) -> Issued:
        if subject is None or reads.identity is None:
            return Issued()
        may_write = not subject.cluster.spec.paused and not metadata_of(reads.resource).get(
            "deletionTimestamp"
        )
        generation = int(metadata_of(reads.resource).get("generation") or 0)
        moment = Moment(generation=generation, now_ms=now_ms)
        held = held_of(known.memory, refusals.ISSUING, **moment)
        issued = await self._issue(
            subject.cluster, subject.inputs, may_write=may_write, served=known.served, held=held
        )
        known.memory = note_refusals(
            known.memory, refusals.ISSUING, issued.refusals, held, **moment
        )
        return issued

    async def _ask(
        self, known: Remembered, reads: Reads, subject: Subject | None, issued: Issued
    ) -> Answers:
        if subject is None or issued.operator is None:
            return Answers()
        if known.connection is None or known.tls != issued.operator:
            if known.connection is not None:
                await known.connection.close()
            known.connection = self._connect(subject.cluster, issued.operator)
            known.tls = issued.operator
        recorded = recorded_of(reads.resource)
        restart = recorded.disruption
        token = reads.token(restart.token) if restart is not None else None
        return await ask(known.connection, askable(pods_of(reads)), restart, token)

    async def _feasible(self, known: Remembered, found: Pass) -> Decision:
        """Decide the next action; check growth of a volume by a dry run first."""
        decision = decide(found.seen, known.memory)
        for _ in range(len(found.reads.claims)):
            action = decision.action
            if found.trouble is not None or not isinstance(action, act.GrowClaim):
                break
            refusal = await would_grow(self._kube, known, found, action)
            if refusal is None:
                break
            known.memory = refuse(known.memory, found, action, refusal)
            decision = decide(found.seen, known.memory)
        return decision

    # -- act ----------------------------------------------------------------------------------

    def _context(self, known: Remembered, found: Pass) -> ActionContext | None:
        if found.subject is None:
            return None
        metadata = found.seen.metadata
        if known.connection is None:
            known.connection = self._connect(found.subject.cluster, None)
        return ActionContext(
            kube=self._kube,
            admin=known.connection,
            leader=metadata.leader if metadata is not None else "",
            cluster=found.subject.cluster,
            inputs=found.subject.inputs,
            rendered=found.subject.rendered,
            reads=found.reads,
            now_ms=found.seen.now_ms,
            held=held_of(known.memory, refusals.KEEPING, **found.moment),
            kept=known.kept,
        )

    @staticmethod
    def _may_keep(found: Pass) -> bool:
        """Return whether objects that the present pods need may be written."""
        desired = found.seen.desired
        is_left_alone = desired.is_paused or desired.is_deleting
        has_set = found.seen.brokers is None or not found.seen.brokers.is_terminating
        return (
            not is_left_alone
            and found.seen.identity is not None
            and has_set
            and found.trouble is None
            and conflict(View(found.seen)) is None
        )

    @classmethod
    def _may_supply(cls, found: Pass) -> bool:
        """Return whether all objects around the set may be reconciled."""
        return cls._may_keep(found) and not found.seen.desired.config_errors

    async def _bring(
        self, key: Key, known: Remembered, found: Pass, context: ActionContext | None
    ) -> bool:
        """Apply the objects around the set where allowed; return whether pods can start."""
        if context is None or not self._may_keep(found):
            return True
        self._fence.check(key.namespace)
        done = await (supply if self._may_supply(found) else supply_configs)(context)
        known.memory = note_refusals(
            known.memory, refusals.KEEPING, done.refusals, context.held, **found.moment
        )
        await self._note_drift(key, known, context, done.drift)
        return not any(
            refusal.reason == "Conflict" or shown.startswith(NEEDED)
            for shown, refusal in done.refusals.items()
        )

    async def _supply_monitors(
        self,
        key: Key,
        known: Remembered,
        found: Pass,
        context: ActionContext | None,
    ) -> None:
        """Apply the objects for the Prometheus operator, before the status that reports them."""
        held = held_of(known.memory, refusals.WATCHING, **found.moment)
        if context is None or not self._may_supply(found) or held:
            return
        self._fence.check(key.namespace)
        conditions = (found.reads.resource.get("status") or {}).get("conditions") or ()
        may_exist = any(
            condition["type"] == "MonitoringReady" and condition.get("reason") in MAY_EXIST
            for condition in conditions
        )
        known.monitored = await supply_monitors(context, may_exist=may_exist)
        refused = {"monitors": one} if (one := known.monitored.refusal) is not None else {}
        known.memory = note_refusals(known.memory, refusals.WATCHING, refused, held, **found.moment)
        await self._note_drift(key, known, context, known.monitored.drift)

    async def _note_drift(
        self,
        key: Key,
        known: Remembered,
        context: ActionContext,
        drift: Iterable[tuple[str, Difference]],
    ) -> None:
        """Report reverted drift: in the log and an Event now, and in the next status."""
        for name, one in drift:
            log.warning("drift_repaired", key=str(key), object=name, field=one.field)
            values = {"manager": one.manager, "field": one.field, "object": name}
            await self._record_events(
                context.reads.resource, Happened(EventReason.DRIFT_REPAIRED, values)
            )
            known.drift.append(
                DriftEntry(
                    object=name[:NOTE_MAX],
                    field=one.field[:NOTE_MAX],
                    manager=one.manager[:NOTE_MAX],
                    time=moment_text(context.now_ms),
                )
            )

    async def _record_events(self, resource: Object, *happened: Happened | None) -> None:
        """Write Events."""
        for one in happened:
            if one is not None and self._events is not None:
                await self._events.record(resource, one.reason, one.values)

    async def _write_and_act(
        self,
        key: Key,
        known: Remembered,
        found: Pass,
        decision: Decision,
        context: ActionContext | None,
    ) -> RequeueAfter | None:
        """Write the status, then apply the objects around the set, then act."""
        action = decision.action
        if isinstance(action, act.Record) and context is not None:
            refusal = await keep_consent(known, context, action, self._fence)
            note_done(
                known, found, action, Done(text=refusal.text if refusal else "", refusal=refusal)
            )
            if refusal is not None:  # the next pass reports it
                decision, action = replace(decision, action=None), None
        account = self._account(found, decision, known)
        try:
            made = await self._write_status(key, known, account, found, action)
        except (ConflictError, NotFoundError):
            return SOON  # the resource changed since it was read: observe again
        except UnansweredError as error:  # no action starts before the status names it
            await self._bring(key, known, found, context)
            known.memory = note_status_write(known.memory, found, error)
            raise
        known.memory = note_status_write(known.memory, found, None)
        resource = found.reads.resource
        before = resource.get("status") or {}
        moved = moved_of(known, found.seen, before)
        if isinstance(action, act.Record):  # the status write performed it
            await self._record_events(resource, *self._events_of(found, action, context))
        await self._record_events(resource, *of_status(account, before, made, moved))
        if context is None or isinstance(action, act.Record):
            return _next(decision, action)
        is_brought = await self._bring(key, known, found, context)
        if isinstance(action, act.CreateSet) and not (is_brought or found.is_remade):
            return WATCHFUL
        if action is not None:
            return await self._act(key, known, found, decision, context)
        known.untidied = None
        if decision.status.is_ready:
            self._fence.check(key.namespace)
            known.untidied = await tidy(context, found)
        return _next(decision, action)

    async def _act(
        self, key: Key, known: Remembered, found: Pass, decision: Decision, context: ActionContext
    ) -> RequeueAfter:
        """Perform the action that was decided."""
        action, resource = decision.action, found.reads.resource
        assert action is not None
        done = await perform(
            context,
            action,
            deadline_ms=decision.deadline_ms,
            clock_ms=self._clock_ms,
            fence=self._act_fence,
        )
        self._remember(key, known, found, action, done)
        if not done.text:
            await self._record_events(resource, *self._events_of(found, action, context))
            if isinstance(action, act.DeletePod):
                time, reason = moment_text(found.seen.now_ms), reason_of(found, action)
                known.restarts[action.name] = RestartStatus(time=time, reason=reason)
        return SOON

    def _remember(
        self, key: Key, known: Remembered, found: Pass, action: act.Action, done: Done
    ) -> None:
        """Remember and log the outcome of an action for the next pass."""
        name = type(action).__name__
        if done.answer is not None and done.answer.text:
            known.tokens = {done.answer.text: done.token}
        known.memory = remember(known.memory, action, done.answer)
        note_done(known, found, action, done)
        if done.text:
            log.info("action_not_done", key=str(key), action=name, why=done.text)
        else:
            log.info("action_done", key=str(key), action=name, what=str(action))

    # -- report -------------------------------------------------------------------------------

    @staticmethod
    def _events_of(
        found: Pass, action: act.Action, context: ActionContext | None
    ) -> tuple[Happened | None, ...]:
        """Return the Events of an action."""
        fate = context.fate if context is not None else "kept"
        failed = failed_revision(found.reads, found.seen.desired.revision)
        event = of_action(action, found.seen, fate, failed.cause if failed is not None else "")
        return (*behind(action, found.seen), event)

    def _account(self, found: Pass, decision: Decision, known: Remembered) -> Account:
        spec, now_ms = found.given.spec, found.seen.now_ms
        trouble = found.trouble or found.lacking or known.untidied
        if spec is None:
            trouble = Trouble("InvalidSpec", {"detail": "; ".join(found.given.errors)})
        is_closed = spec is not None and not found.seen.desired.is_window_open
        return Account(
            spec=spec,
            seen=found.seen,
            decision=decision,
            certificates=found.issued.certificates,
            pending=pending_claims(found.reads),
            lost=lost_claims(found.reads),
            unresized=unresized_claims(found.reads),
            monitoring=(known.monitored.reason, known.monitored.values),
            next_window_ms=next_opening_ms(spec.disruption.windows, now_ms)
            if spec is not None and is_closed
            else 0,
            trouble=(trouble.reason, trouble.values) if trouble is not None else None,
            failed=failed_revision(found.reads, found.seen.desired.revision),
        )

    async def _write_status(
        self,
        key: Key,
        known: Remembered,
        account: Account,
        found: Pass,
        action: act.Action | None,
    ) -> dict[str, Any]:
        """Write the status when it differs from the resource's, and return it."""
        resource = found.reads.resource
        before = resource.get("status") or {}
        recorded = account.seen.recorded
        if isinstance(action, act.Record):
            recorded = action.recorded
        recorded = replace(recorded, size=size_after(account.seen, action))
        news = News(dict(known.restarts), tuple(known.drift))
        around = surroundings(found.reads, found.answers, found.subject, self._itself, news)
        made = status_of(account, recorded, around, before)
        if await self._apply_status(key, resource, made):
            known.restarts.clear()
            known.drift.clear()
        return made

    async def _write_unread(
        self, key: Key, resource: Object, message: str, now_ms: int
    ) -> RequeueAfter:
        """Report that the state is unknown, since a read was forbidden."""
        log.warning("reading_refused", key=str(key), why=message)
        missing = f"what it needs: {message}"
        with suppress(ConflictError, NotFoundError):
            if await self._apply_status(key, resource, unread_status(resource, missing, now_ms)):
                values = {"verb": "read", "object": missing}
                await self._record_events(resource, Happened(EventReason.MISSING_RIGHTS, values))
        return WATCHFUL

    async def _apply_status(self, key: Key, resource: Object, made: dict[str, Any]) -> bool:
        """Write a status that differs from the resource's, and return whether it did."""
        if self._board is not None:
            self._board.set_conditions(key, made["conditions"])
        if says_the_same(made, resource.get("status") or {}):
            return False
        self._fence.check(key.namespace)
        await self._kube.apply_status(with_status(resource, made))
        return True


def _next(decision: Decision, action: act.Action | None) -> RequeueAfter:
    if action is not None:
        return SOON
    return QUIET if decision.status.is_ready else WATCHFUL
