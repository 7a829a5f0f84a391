"""A reconciled cluster with real Secrets, and the kinds of objects that the operator writes for it.

For tests in which writes of each kind fail, hang or are refused.
"""

import itertools
from typing import Final

from liftbridge_operator.cluster.securing.secret_store import SecretStore
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PODS,
    PROMETHEUS_RULES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
    SETS,
    Kind,
)
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_testkit.operator_sim.reconciled import NAMESPACE, ReconciledWorld

MONITORS: Final = (SERVICE_MONITORS, PROMETHEUS_RULES)
KINDS: Final = (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SETS,
    *MONITORS,
)
"""Kinds of objects that belong to a cluster of `SPEC`."""

SPEC: Final = {
    "tls": {"mode": "Generated"},
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
ISSUER: Final = CryptographyIssuer()
RENEWAL_MS: Final = 65 * 86_400_000
"""Age at which certificates of the operator are due for renewal."""

MARK: Final = "app.kubernetes.io/name"
"""A label that every object has."""


def secret_store(world: ReconciledWorld, kube: Kube | None = None) -> SecretStore:
    """Return a store of Secrets on the clock of a world, with numbered passwords and keys."""
    numbers = itertools.count()
    return SecretStore(
        kube or world.kube,
        ISSUER,
        lambda: world.now_ms // 1_000,
        lambda: f"password{next(numbers)}",
        lambda: f"key-{next(numbers):060}",
    )


def disturb(world: ReconciledWorld, kind: Kind) -> None:
    """Remove the mark from all objects of a kind; for Secrets, let certificates come due."""
    if kind == SECRETS:
        world.stage.now += RENEWAL_MS
        return
    for name in world.kube.names_of(kind):
        world.kube.edit(kind, NAMESPACE, name, _unmark)


def _unmark(body: Object) -> None:
    body["metadata"]["labels"].pop(MARK, None)


def lose(world: ReconciledWorld, kind: Kind) -> None:
    """Delete all objects of a kind."""
    for name in world.kube.names_of(kind):
        world.kube.remove(kind, NAMESPACE, name)
