"""Assemble the user reconciler with its clusters, for the process."""

from liftbridge_operator.cluster.brokers.reach import UnusableError, credentials_of, endpoints_of
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.port import Object
from liftbridge_operator.process.process import Context
from liftbridge_operator.streams.port import SilentError
from liftbridge_operator.users.clusters import Clusters
from liftbridge_operator.users.grpc_users import GrpcUsers
from liftbridge_operator.users.reconciler import UserReconciler


def user_reconciler(context: Context) -> UserReconciler:
    """Return a reconciler, which its creator closes.

    Args:
        context: Dependencies that the process passes to reconcilers.
    """
    issuer = CryptographyIssuer()

    async def connect(body: Object) -> GrpcUsers:
        try:
            credentials = await credentials_of(context.kube, body)
        except UnusableError as error:
            raise SilentError(str(error)) from error
        return GrpcUsers(endpoints_of(body), credentials)

    clusters = Clusters(
        context.kube,
        connect,
        issuer.describe,
        context.clock,
        tuple(context.settings.watch_namespaces),
    )
    return UserReconciler(
        context.kube,
        clusters,
        issuer,
        context.events,
        context.clock,
        fence=context.fence,
        board=context.board,
    )
