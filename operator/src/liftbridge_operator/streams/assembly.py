"""Assemble the stream reconciler with its feed, for the process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from liftbridge_operator.cluster.brokers.reach import UnusableError, credentials_of, endpoints_of
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.process.process import Context
from liftbridge_operator.streams.feed import StreamFeed
from liftbridge_operator.streams.grpc_streams import GrpcStreams
from liftbridge_operator.streams.port import SilentError, StreamBrokers
from liftbridge_operator.streams.reconciler import StreamReconciler


@asynccontextmanager
async def stream_reconciler(context: Context) -> AsyncIterator[StreamReconciler]:
    """Open a reconciler whose feed polls clusters for as long as the context lasts.

    Args:
        context: Dependencies that the process passes to reconcilers.
    """

    async def connect(body: Object) -> StreamBrokers:
        return await connect_brokers(context.kube, body)

    feed = StreamFeed(context.kube, connect, context.requests, context.clock)
    looking = asyncio.get_running_loop().create_task(feed.run())
    # Without polls no drift is reverted, and nothing else would report that.
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
    """Connect to the brokers of a cluster as the cluster reconciler does.

    Args:
        kube: The API server, which holds the operator's certificate.
        body: The LiftbridgeCluster.

    Raises:
        KubeError: The certificate does not exist, or cannot be read.
        SilentError: The certificate is not usable.
    """
    try:
        credentials = await credentials_of(kube, body)
    except UnusableError as error:
        raise SilentError(str(error)) from error
    return GrpcStreams(endpoints_of(body), credentials)
