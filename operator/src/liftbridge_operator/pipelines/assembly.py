"""Assemble the pipeline reconciler, for the process."""

from importlib import metadata

from liftbridge_operator.cluster.brokers.reach import UnusableError, credentials_of, endpoints_of
from liftbridge_operator.kube.port import Object
from liftbridge_operator.pipelines.grpc_positions import GrpcPositions
from liftbridge_operator.pipelines.port import SilentError
from liftbridge_operator.pipelines.reconciler import PipelineReconciler
from liftbridge_operator.pipelines.subject import Means
from liftbridge_operator.process.process import Context


def pipeline_reconciler(context: Context) -> PipelineReconciler:
    """Make a reconciler, which the caller closes.

    Args:
        context: Dependencies that the process passes to reconcilers.
    """

    async def connect(body: Object, first: str) -> GrpcPositions:
        try:
            credentials = await credentials_of(context.kube, body)
        except UnusableError as error:
            raise SilentError(str(error)) from error
        return GrpcPositions(endpoints_of(body), credentials, first=first)

    return PipelineReconciler(
        context.kube,
        connect,
        context.events,
        context.clock,
        board=context.board,
        means=means_of(context),
    )


def means_of(context: Context) -> Means:
    """Return the image and role for pipelines from the settings of the process."""
    given = context.settings
    version = metadata.version("liftbridge-operator")
    return Means(f"{given.spark_image}:{version}", given.executor_role)
