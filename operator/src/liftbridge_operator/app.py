"""Assemble the reconcilers of the process with their dependencies."""

import secrets
import string
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from typing import Final
from uuid import uuid4

from liftbridge_operator.cluster.brokers.grpc_admin import GrpcAdmin, TlsMaterial
from liftbridge_operator.cluster.reconciling.ports import ImageOf, Itself
from liftbridge_operator.cluster.reconciling.reconciler import ClusterReconciler
from liftbridge_operator.cluster.reconciling.sparing import SparingKube, SparingReconciler
from liftbridge_operator.cluster.rendering.subject import Cluster
from liftbridge_operator.cluster.securing.secret_store import SecretStore
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.kinds import CLUSTERS, PIPELINES, STREAMS, USERS, Kind
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.pipelines.assembly import pipeline_reconciler
from liftbridge_operator.process.process import Context
from liftbridge_operator.process.reconciler import Reconciler
from liftbridge_operator.streams.assembly import stream_reconciler
from liftbridge_operator.users.assembly import user_reconciler

PASSWORD_CHARACTERS: Final = 40
"""Length of passwords; from 62 characters that is more than 200 bits."""

KEY_BYTES: Final = 32

_ALPHABET: Final = string.ascii_letters + string.digits


@asynccontextmanager
async def make_reconcilers(context: Context) -> AsyncIterator[Mapping[Kind, Reconciler]]:
    """Make the reconcilers of all kinds; their broker connections last as long as the context.

    Args:
        context: Dependencies that the process passes to reconcilers.
    """
    kube = SparingKube(context.kube, context.fence, context.clock.now)
    context.on_change.append(kube.forget)
    secret_store = SecretStore(
        kube,
        CryptographyIssuer(),
        now_s=lambda: int(context.clock.wall().timestamp()),
        password=make_password,
        key=partial(secrets.token_hex, KEY_BYTES),
    )
    clusters = ClusterReconciler(
        kube,
        fence=context.fence,
        connect=connect,
        issue=secret_store,
        image_of=image_of(context.settings.broker_image),
        clock_ms=lambda: int(context.clock.wall().timestamp() * 1_000),
        fresh_id=lambda: str(uuid4()),
        itself=Itself(
            metadata.version("liftbridge-operator"), context.namespace, context.settings.labels
        ),
        board=context.board,
        events=context.events,
        act_fence=kube,
    )
    pipelines, users = pipeline_reconciler(context), user_reconciler(context)
    async with stream_reconciler(context) as streams:
        try:
            yield {
                CLUSTERS: SparingReconciler(clusters, kube),
                STREAMS: streams,
                PIPELINES: pipelines,
                USERS: users,
            }
        finally:
            await users.close()
            await pipelines.close()
            await clusters.close()


def connect(cluster: Cluster, tls: TlsMaterial | None) -> GrpcAdmin:
    """Return the admin port of a cluster's brokers, at the DNS names of their pods."""

    def address_of(broker: str) -> str:
        return f"{names.host(broker, cluster.name, cluster.namespace)}:{names.PORTS['admin']}"

    return GrpcAdmin(address_of, tls)


def image_of(repository: str) -> ImageOf:
    """Return a function that maps a specification to its broker image.

    Args:
        repository: Image without a tag.
    """

    def found(spec: ClusterSpec) -> str:
        return spec.image or f"{repository}:{spec.version}"

    return found


def make_password() -> str:
    """Generate a random password."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(PASSWORD_CHARACTERS))
