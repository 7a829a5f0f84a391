"""The reference of the plugin as Markdown, generated from the plugin itself.

python -m liftbridge_operator.plugin.reference > docs/reference/kubernetes/plugin.md
"""

import sys
from collections.abc import Iterator
from typing import Final

import click

from liftbridge_operator.plugin.cli import kubectl_options, make_commands
from liftbridge_operator.plugin.describe import KUBECTL

INTRODUCTION: Final = """\
# Plugin `kubectl liftbridge`

Generated from the plugin (`python -m liftbridge_operator.plugin.reference`); a test compares.

`kubectl-liftbridge` comes with the package `liftbridge-operator` and is in its image. If it is on
the `PATH`, it runs as `kubectl liftbridge`. It uses the permissions of its user: `get`, `list` and
`patch` on `liftbridgeclusters.liftbridge.io`, and `list` on `streams.liftbridge.io`
(`rbac.aggregate` of the chart grants them to users who may edit a namespace). It writes only
[annotations](index.md) of `LiftbridgeCluster` resources; the operator decides what follows from
them.

Results go to standard output, progress and questions to standard error. `-o json` prints one
document. Without a terminal, the plugin asks no questions: `approve` then needs `--hash` or
`--yes`, and `restart` needs `--yes`. An error is one line that says what was found and where;
`LIFTBRIDGE_TRACEBACK=1` shows where it came from.

| Exit code | Meaning |
| --- | --- |
| 0 | done |
| 1 | refused, by the API server or because the cluster does not allow it |
| 2 | the command line is wrong, or there is no terminal for a question |
| 3 | the API server is unavailable, or does not accept your credentials |
| 4 | the wait timed out |
| 130 | interrupted |
"""

ENDING: Final = """\
## What a drain is

A drained broker leads neither partitions nor the metadata group, and gets no new replicas. It
keeps the replicas it has, as followers. (`liftbridge cluster drain` moves them away. The operator
does that with a broker that `spec.replicas` has no place for.) Clients therefore notice little when
the broker stops, and its node is ready for `kubectl drain`, which the PodDisruptionBudget allows
for one broker at a time.

During a drain, a stream with as many replicas as there are brokers cannot be created. Partitions
without an in-sync replica on another broker stay where they are. Not all brokers of a cluster can
be drained. A broker stays drained wherever it runs next, until `--undo` names it.

If the operator may read nodes, brokers on cordoned nodes hand over their leaderships in advance in
the same way, but accept new replicas. Use the plugin where the operator may not read nodes, and for
anything else that is about to happen to a broker.

## What is in a bundle

A `.tar.gz` that only its owner can read: the cluster, its streams, StatefulSet, pods, claims,
ConfigMaps, Services, disruption budget and network policies, events about them, their nodes, the
pods and Leases of the operator, versions, and the end of each log, including those of containers
that were restarted. `manifest.json` lists what you may not read, what does not exist, and what
exceeded the size or time limit; none of these is an error.

The plugin never reads Secrets. From everything else it removes what is, or may be, a secret: values
of variables that the operator does not set itself, values whose key suggests one (`password`,
`token`, ...), private keys, tokens, seeds, and credentials in addresses. Names of streams,
subjects, hosts and people stay. Review the bundle before you share it.
"""


def reference() -> str:
    """Return the page."""
    parts = [
        INTRODUCTION,
        "\n".join(_options("Options shared with kubectl", kubectl_options())),
    ]
    shared = {str(option.name) for option in kubectl_options()} | {"output"}
    parts += ["\n".join(_section(command, shared)) for command in make_commands()]
    return "\n".join([*parts, ENDING])


def _section(command: click.Command, shared: set[str]) -> Iterator[str]:
    with click.Context(command, info_name=str(command.name)) as context:
        pieces = command.collect_usage_pieces(context)
        usage = " ".join(piece for piece in pieces if piece != "[OPTIONS]")
        yield f"## `{KUBECTL} {command.name}`\n"
        yield f"```text\n{KUBECTL} {command.name} {usage}".rstrip() + "\n```\n"
        yield f"{command.help}\n"
        own = [
            param
            for param in command.params
            if isinstance(param, click.Option) and param.name not in shared
        ]
        if own:
            yield from _table(own)


def _options(heading: str, options: list[click.Option]) -> Iterator[str]:
    yield f"## {heading}\n"
    yield "Accepted before or after the command; the one after the command wins.\n"
    yield from _table(options)


def _table(options: list[click.Option]) -> Iterator[str]:
    yield "| Option | Meaning |"
    yield "| --- | --- |"
    for option in options:
        names = ", ".join(option.opts)
        if option.secondary_opts:
            names += f" / {', '.join(option.secondary_opts)}"
        value = "" if option.is_flag else f" {option.metavar or 'NUMBER'}"
        yield f"| `{names}{value}` | {option.help}{_default(option)} |"
    yield ""


def _default(option: click.Option) -> str:
    shown = option.show_default
    if isinstance(shown, str):
        return f" Default: `{shown}`."
    if not shown:
        return ""
    if option.is_flag:
        names = option.opts if option.default else option.secondary_opts
        return f" Default: `{names[0]}`."
    return f" Default: `{option.default}`."


if __name__ == "__main__":
    sys.stdout.write(reference())
