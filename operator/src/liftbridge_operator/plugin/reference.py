"""The reference of the plugin as Markdown, made from the plugin itself.

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

Made from the plugin itself (`python -m liftbridge_operator.plugin.reference`); a test compares.

`kubectl-liftbridge` comes with the package `liftbridge-operator` and is in its image. Where it lies
on the `PATH`, `kubectl liftbridge` is it. It works with the rights of its user: `get`, `list` and
`patch` of `liftbridgeclusters.liftbridge.io`, and `list` of `streams.liftbridge.io`
(`rbac.aggregate` of the chart gives them to those who may edit a namespace). All it ever writes are
[annotations](index.md) of `LiftbridgeCluster` resources; what follows from them is decided by the
operator.

Answers go to standard output, talk to standard error. `-o json` gives one document. Nothing is
asked without a terminal: `approve` needs `--hash` or `--yes` then, and `restart` `--yes`. An error
is one line with what was found and where; `LIFTBRIDGE_TRACEBACK=1` shows where it came from.

| Exit code | Meaning |
| --- | --- |
| 0 | done |
| 1 | refused, by the API server or because the cluster does not allow it |
| 2 | the command line is wrong, or there is nobody to ask |
| 3 | the API server is away, or takes no credentials of yours |
| 4 | what was waited for did not happen in time |
| 130 | interrupted |
"""

ENDING: Final = """\
## What a drain is

A drained broker leads no partition and not the metadata, and gets no new replicas; the replicas it
has stay, and go on following. (`liftbridge cluster drain` moves them away. That is what the
operator does with a broker that `spec.replicas` has no place for.) So little is noticed when it
stops, and it is ready for `kubectl drain` of its node, which the PodDisruptionBudget lets through
for one broker at a time.

A stream with as many replicas as there are brokers cannot be created meanwhile. Partitions of which
nobody else has a replica in sync stay where they are. Not all brokers of a cluster can be drained.
A broker is drained wherever it runs next, until `--undo` names it.

Where the operator may read nodes, brokers leave cordoned nodes ahead in the same way by themselves,
but take new replicas. The plugin is for where it may not, and for all else that is about to happen
to a broker.

## What is in a bundle

A `.tar.gz` that only its owner can read: the cluster, its streams, StatefulSet, pods, claims,
ConfigMaps, Services, budget and network policies, events about them, their nodes, the pods and
Leases of the operator, versions, and the end of each log, also of containers that were started
again. What may not be read, is not there, or finds no room or time is listed in `manifest.json` and
is no error.

Secrets are never read. Out of everything else is taken what is, or may be, one: values of variables
that the operator does not set itself, values whose key says so (`password`, `token`, ...), private
keys, tokens, seeds, and credentials in addresses. Names stay: of streams, subjects, hosts and
people. Look through it before it leaves your hands.
"""


def reference() -> str:
    """The page."""
    parts = [
        INTRODUCTION,
        "\n".join(_options("Options that kubectl has as well", kubectl_options())),
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
            one
            for one in command.params
            if isinstance(one, click.Option) and one.name not in shared
        ]
        if own:
            yield from _table(own)


def _options(heading: str, options: list[click.Option]) -> Iterator[str]:
    yield f"## {heading}\n"
    yield "Before or after the command; the nearer one counts.\n"
    yield from _table(options)


def _table(options: list[click.Option]) -> Iterator[str]:
    yield "| Option | Meaning |"
    yield "| --- | --- |"
    for one in options:
        names = ", ".join(one.opts)
        if one.secondary_opts:
            names += f" / {', '.join(one.secondary_opts)}"
        value = "" if one.is_flag else f" {one.metavar or 'NUMBER'}"
        yield f"| `{names}{value}` | {one.help}{_default(one)} |"
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
