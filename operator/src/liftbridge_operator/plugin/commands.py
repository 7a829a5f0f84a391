"""The six commands: from parsed arguments to the result."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from liftbridge_operator.cluster.observing.objects import Json
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model import names
from liftbridge_operator.plugin import annotate, bundle, describe, lookup
from liftbridge_operator.plugin.describe import KUBECTL, Answer
from liftbridge_operator.plugin.exits import ExitCode, PluginError
from liftbridge_operator.plugin.lookup import name_of, place_of
from liftbridge_operator.plugin.session import Session, until
from liftbridge_operator.plugin.tables import counted

NOTHING_DONE: Final = "nothing was done"
DIGITS_MAX: Final = 4
"""Digits of a broker's number."""


async def status(session: Session, name: str, *, is_everywhere: bool) -> Answer:
    """`status`: one cluster, or all of a namespace."""
    if name and is_everywhere:
        raise PluginError("CLUSTER and --all-namespaces are mutually exclusive", ExitCode.USAGE)
    if not name:
        namespace = "" if is_everywhere else session.namespace
        return describe.overview(await lookup.clusters(session.access, namespace), session.now_ms())
    resource = await lookup.cluster(session.access, session.namespace, name)
    streams = await lookup.streams(session.access, resource)
    return describe.status(resource, streams, session.now_ms())


async def plan(session: Session, name: str) -> Answer:
    """`plan`: what will be disrupted."""
    return describe.plan(await lookup.cluster(session.access, session.namespace, name))


async def approve(session: Session, name: str, shown: str, *, is_sure: bool) -> Answer:
    """`approve`: approve a plan.

    Args:
        session: Session of the command.
        name: Name of the cluster.
        shown: Hash of the reviewed plan; empty for the one that is shown now.
        is_sure: Whether to skip the question; a given hash skips it too.
    """
    resource = await lookup.cluster(session.access, session.namespace, name)
    annotate.check_approvable(resource, shown)
    made = describe.plan_of(resource)
    meant = str(made.get("hash"))
    if describe.is_approved(made):
        return _approved(resource, meant, "is already approved")
    risks = made.get("risks") or ()
    if not made.get("needsApproval") and all(risk.get("accepted") for risk in risks):
        return _approved(resource, meant, "needs no approval: it starts automatically")
    if not shown:
        session.report(describe.plan(resource).text)
        if not is_sure and not session.confirm(f"Approve plan {meant}?"):
            raise PluginError(NOTHING_DONE)
    after = await annotate.write(session.access, resource, annotate.approval(meant))
    return _approved(after, meant, "is approved")


def _approved(resource: Json, meant: str, text: str) -> Answer:
    document = {**lookup.summary_of(resource), "hash": meant, "answer": text}
    return Answer(f"{place_of(resource)}: plan {meant} {text}.", document)


async def restart(
    session: Session, name: str, brokers: Sequence[str], *, is_sure: bool, wait_s: float
) -> Answer:
    """`restart`: all brokers, or some of them, one after the other through the gate.

    Args:
        session: Session of the command.
        name: Name of the cluster.
        brokers: Numbers or names; none for all.
        is_sure: Whether to skip the question.
        wait_s: How many seconds to wait until it is done; 0 to return immediately.
    """
    resource = await lookup.cluster(session.access, session.namespace, name)
    annotate.check_runs(resource)
    wanted = [_broker_of(resource, broker) for broker in brokers]
    uids = annotate.pods_of(resource, wanted)
    which = ", ".join(uids) or "all brokers"
    if not is_sure and not session.confirm(f"{place_of(resource)}: restart {which}?"):
        raise PluginError(NOTHING_DONE)
    if uids:
        after = await annotate.write(
            session.access, resource, annotate.restart_of(list(uids.values()))
        )
    else:
        stamp, change = annotate.restart_of_all(session.now_ms())
        after = await annotate.write(session.access, resource, change)
    document = {**lookup.summary_of(after), "brokers": list(uids) or None}
    if not wait_s:
        text = f"{place_of(after)}: requested the restart of {which}; see `{KUBECTL} plan "
        return Answer(f"{text}{name_of(after)}`.", {**document, "isDone": False})
    if uids:
        await until(session, after, lambda one: annotate.missing_of_pods(one, uids), wait_s)
    else:
        await until(session, after, lambda one: annotate.missing_of_restart(one, stamp), wait_s)
    return Answer(f"{place_of(after)}: restarted {which}.", {**document, "isDone": True})


def _broker_of(resource: Json, text: str) -> str:
    """A broker by its number or its name."""
    return names.broker(name_of(resource), int(text)) if _is_number(text) else text


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


async def drain(
    session: Session,
    brokers: Sequence[str],
    node: str,
    *,
    is_everywhere: bool,
    is_over: bool,
    wait_s: float,
) -> Answer:
    """`drain`: brokers, or those on a node, lead nothing and get no new replicas; or end that.

    Args:
        session: Session of the command.
        brokers: Names of brokers.
        node: Name of the node; empty if brokers are named.
        is_everywhere: For a node: whether to include clusters of all namespaces.
        is_over: Whether to end the drain.
        wait_s: How many seconds to wait until it is done; 0 to return immediately.
    """
    if bool(brokers) == bool(node):
        raise PluginError("give either BROKER or --node, not both", ExitCode.USAGE)
    if is_everywhere and not node:
        raise PluginError("--all-namespaces needs --node", ExitCode.USAGE)
    found = (
        await _on_node(session, node, is_everywhere=is_everywhere)
        if node
        else await _named(session, brokers)
    )
    done: list[dict[str, object]] = []
    lines = []
    changes = [(resource, annotate.drain_of(mine, is_over=is_over)) for resource, mine in found]
    for resource, change in changes:
        change(resource)  # if one cluster refuses, none is changed
    for resource, change in changes:
        await annotate.write(session.access, resource, change)
    for resource, mine in found:
        after = resource
        if wait_s:
            after = await until(session, resource, _missing(mine, is_over=is_over), wait_s)
        lines.append(
            f"{place_of(resource)}: {_drained(after, mine, is_over=is_over, wait_s=wait_s)}"
        )
        done.append({**lookup.summary_of(after), "brokers": mine, "isDone": bool(wait_s)})
    return Answer("\n".join(lines), {"clusters": done})


def _missing(mine: Sequence[str], *, is_over: bool) -> annotate.Missing:
    if is_over:
        return lambda one: annotate.missing_of_return(one, mine)
    return lambda one: annotate.missing_of_drain(one, mine)


def _drained(resource: Json, mine: Sequence[str], *, is_over: bool, wait_s: float) -> str:
    listed = ", ".join(mine)
    if is_over:
        return f"the drain of {listed} is over" + ("" if wait_s else " once the operator sees it")
    if not wait_s:
        return f"requested the drain of {listed}"
    known: Mapping[str, Json] = lookup.brokers_of(resource)
    nodes = dict.fromkeys(str((known.get(one) or {}).get("node") or "") for one in mine)
    nodes.pop("", None)
    where = f" (on {', '.join(nodes)})" if nodes else ""
    return f"{listed}{where}: drained; no leaderships and no new replicas"


async def _on_node(
    session: Session, node: str, *, is_everywhere: bool
) -> list[tuple[Object, list[str]]]:
    namespace = "" if is_everywhere else session.namespace
    resources = await lookup.clusters(session.access, namespace)
    found = [
        (resource, mine) for resource in resources if (mine := describe.brokers_on(resource, node))
    ]
    if not found:
        where = f"of namespace {namespace}" if namespace else "of any namespace"
        seen = counted(len(resources), "cluster")
        raise PluginError(f"no broker {where} runs on node {node} ({seen} checked)")
    return found


async def _named(session: Session, brokers: Sequence[str]) -> list[tuple[Object, list[str]]]:
    by_cluster: dict[str, list[str]] = {}
    for broker in brokers:
        name, dash, number = broker.rpartition("-")
        if not (name and dash and _is_number(number)):
            raise PluginError(f"{broker!r} is not a broker name such as orders-1", ExitCode.USAGE)
        by_cluster.setdefault(name, []).append(broker)
    return [
        (await lookup.cluster(session.access, session.namespace, name), mine)
        for name, mine in by_cluster.items()
    ]


async def support_bundle(
    session: Session,
    name: str,
    *,
    path: Path | None,
    bounds: bundle.Bounds,
    operator_namespace: str,
) -> Answer:
    """`support-bundle`: everything that shows what happened, without secrets, in a file."""
    resource = await lookup.cluster(session.access, session.namespace, name)
    file, size, manifest = await bundle.write_bundle(
        session.access,
        resource,
        path=path,
        bounds=bounds,
        operator_namespace=operator_namespace,
        now_ms=session.now_ms(),
        report=session.report,
    )
    lacks = len(manifest["refused"]) + len(manifest["leftOut"])
    missing = f"; {counted(lacks, 'item')} missing, see its manifest.json" if lacks else ""
    text = f"{file}: {size / 1024:.0f} KiB, {manifest['redacted']} secrets removed{missing}."
    return Answer(text, {"file": str(file), "bytes": size, "manifest": manifest})
