"""The reconciler of streams with its feed, as the process runs it."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from liftbridge_operator.kube.kinds import SECRETS
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.model.network import ADMIN_PORT
from liftbridge_operator.rendering import names
from liftbridge_operator.runtime.process import Context
from liftbridge_operator.streams.feed import StreamFeed
from liftbridge_operator.streams.grpc_streams import Endpoint, GrpcStreams
from liftbridge_operator.streams.port import SilentError, StreamBrokers
from liftbridge_operator.streams.reconciler import StreamReconciler


@asynccontextmanager
async def stream_reconciler(context: Context) -> AsyncIterator[StreamReconciler]:
    """A reconciler whose feed looks at clusters for as long as the context lasts.

    Args:
        context: What the process gives to reconcilers.
    """

    async def connect(body: Object) -> StreamBrokers:
        return await connect_brokers(context.kube, body)

    feed = StreamFeed(context.kube, connect, context.requests, context.clock)
    looking = asyncio.get_running_loop().create_task(feed.run())
    # Without looks nothing is repaired any more, and nothing else would tell.
    context.companions.add(looking)
    try:
        yield StreamReconciler(
            context.kube,
            feed,
            context.events,
            context.clock,
            fence=context.fence,
            board=context.board,
            is_namespaced=bool(context.settings.watch_namespaces),
        )
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await feed.close()


async def connect_brokers(kube: Kube, body: Object) -> GrpcStreams:
    """Reach the brokers of a cluster as the reconciler of clusters does.

    Args:
        kube: Has the certificate that the operator shows.
        body: The LiftbridgeCluster.

    Raises:
        KubeError: The certificate is not there, or cannot be read.
        SilentError: It is not usable.
    """
    metadata: dict[str, Any] = body["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    secret = await kube.get(SECRETS, namespace, names.operator_leaf(name))
    files = {key: b64decode(text) for key, text in secret.get("data", {}).items()}
    keys = (names.CA_KEY, names.KEY_KEY, names.CERT_KEY)
    if not all(files.get(key) for key in keys):
        raise SilentError(f"Secret {names.operator_leaf(name)} lacks a file")
    credentials = grpc.ssl_channel_credentials(*(files[key] for key in keys))
    return GrpcStreams(_endpoints(namespace, name, body), credentials)


def _endpoints(namespace: str, cluster: str, body: Object) -> list[Endpoint]:
    """All brokers that there are, or are to be."""
    wanted = body.get("spec", {}).get("replicas", 1)
    present = body.get("status", {}).get("replicas", 0)
    brokers = [names.broker(cluster, ordinal) for ordinal in range(max(wanted, present, 1))]
    return [
        Endpoint(broker, f"{names.host(broker, cluster, namespace)}:{ADMIN_PORT}")
        for broker in brokers
    ]
