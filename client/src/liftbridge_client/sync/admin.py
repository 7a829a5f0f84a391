"""The blocking admin client."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from liftbridge_client import admin_model as model
from liftbridge_client.aio.admin import AdminClient, connect_admin
from liftbridge_client.model import TlsFiles
from liftbridge_client.sync.portal import Portal


def connect_admin_sync(
    servers: str,
    *,
    tls: TlsFiles | None = None,
    timeout: timedelta = timedelta(seconds=5),
    retry_time: timedelta = timedelta(seconds=10),
) -> "SyncAdminClient":
    """Create a blocking admin client, to enter with `with`; see `connect_admin`."""
    client = connect_admin(servers, tls=tls, timeout=timeout, retry_time=retry_time)
    return SyncAdminClient(client)


class SyncAdminClient:
    """Blocking administration of a cluster; see `AdminClient`. A thread runs its event loop."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._portal = Portal()

    def __enter__(self) -> Self:
        """Start the thread and read the TLS files; see `AdminClient`."""
        self._portal.open()
        try:
            self._portal.run(self._client.__aenter__())
        except BaseException:
            self._portal.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; may be called twice."""
        if self._portal.is_open:
            try:
                self._portal.run(self._client.aclose())
            finally:
                self._portal.close()

    def identities(self) -> dict[str, model.Identity]:
        """Identify the broker behind each address; see `AdminClient.identities`."""
        return self._portal.run(self._client.identities())

    def cluster(self, *, from_leader: bool = True) -> model.ClusterStatus:
        """Describe the metadata group; see `AdminClient.cluster`."""
        return self._portal.run(self._client.cluster(from_leader=from_leader))

    def brokers(self, *, from_leader: bool = True) -> Sequence[model.BrokerDescription]:
        """List brokers by name; see `AdminClient.brokers`."""
        return self._portal.run(self._client.brokers(from_leader=from_leader))

    def broker_status(self, broker: str) -> model.BrokerStatus:
        """Fetch the status of a broker; see `AdminClient.broker_status`."""
        return self._portal.run(self._client.broker_status(broker))

    def partitions(
        self,
        *streams: str,
        broker: str = "",
        only_degraded: bool = False,
        seen_by: str = "",
    ) -> Iterator[model.PartitionStatus]:
        """List partitions in order of creation; see `AdminClient.partitions`."""
        return self._portal.iterate(
            self._client.partitions(
                *streams, broker=broker, only_degraded=only_degraded, seen_by=seen_by
            )
        )

    def reassignments(self) -> Sequence[model.Reassignment]:
        """List reassignments in progress; see `AdminClient.reassignments`."""
        return self._portal.run(self._client.reassignments())

    def check_restart(
        self,
        broker: str,
        *,
        needs_full_isr: bool = True,
        allow_unavailable: bool = False,
        valid: timedelta = timedelta(minutes=1),
    ) -> model.RestartCheck:
        """Check whether a broker may be restarted now; see `AdminClient.check_restart`."""
        return self._portal.run(
            self._client.check_restart(
                broker,
                needs_full_isr=needs_full_isr,
                allow_unavailable=allow_unavailable,
                valid=valid,
            )
        )

    def verify_restart(self, broker: str, token: bytes) -> model.RestartVerification:
        """Check whether a restarted broker has recovered; see `AdminClient.verify_restart`."""
        return self._portal.run(self._client.verify_restart(broker, token))

    def cordon(self, broker: str, *, drain: bool = False) -> int:
        """Cordon a broker and, with `drain`, move its replicas away; see `AdminClient.cordon`."""
        return self._portal.run(self._client.cordon(broker, drain=drain))

    def uncordon(self, broker: str) -> None:
        """End the cordon and the drain of a broker; see `AdminClient.uncordon`."""
        self._portal.run(self._client.uncordon(broker))

    def remove_broker(self, broker: str, *, broker_epoch: int = 0) -> None:
        """Remove a stopped broker without replicas; see `AdminClient.remove_broker`."""
        self._portal.run(self._client.remove_broker(broker, broker_epoch=broker_epoch))

    def retire(self, broker: str, data_dir_id: str) -> None:
        """Permanently bar a broker's data directory from voting; see `AdminClient.retire`."""
        self._portal.run(self._client.retire(broker, data_dir_id))

    def set_feature_level(self, level: int) -> None:
        """Permanently raise the feature level; see `AdminClient.set_feature_level`."""
        self._portal.run(self._client.set_feature_level(level))

    def settings(self, broker: str) -> Sequence[model.Setting]:
        """List the settings in effect on a broker; see `AdminClient.settings`."""
        return self._portal.run(self._client.settings(broker))

    def reload(self, broker: str) -> model.Reloaded:
        """Reload the configuration of a broker, as SIGHUP does; see `AdminClient.reload`."""
        return self._portal.run(self._client.reload(broker))

    def set_catch_up_rate(self, bytes_per_second: int) -> None:
        """Limit the catch-up rate of reassignments; see `AdminClient.set_catch_up_rate`."""
        self._portal.run(self._client.set_catch_up_rate(bytes_per_second))

    def set_stream_owner(
        self, stream: str, owner: str, *, stream_id: int, expected: str = ""
    ) -> None:
        """Set the owner of a stream; see `AdminClient.set_stream_owner`."""
        self._portal.run(
            self._client.set_stream_owner(stream, owner, stream_id=stream_id, expected=expected)
        )

    def transfer_leadership(
        self, *partitions: model.PartitionName, from_broker: str = "", to: str = ""
    ) -> Sequence[model.PartitionOutcome]:
        """Transfer leadership of partitions; see `AdminClient.transfer_leadership`."""
        return self._portal.run(
            self._client.transfer_leadership(*partitions, from_broker=from_broker, to=to)
        )

    def elect_preferred(self, *partitions: model.PartitionName) -> Sequence[model.PartitionOutcome]:
        """Elect the first replica of partitions; see `AdminClient.elect_preferred`."""
        return self._portal.run(self._client.elect_preferred(*partitions))

    def elect_unclean(
        self, partition: model.PartitionName, broker: str, *, partition_epoch: int
    ) -> model.Election:
        """Elect a replica that may lack records; see `AdminClient.elect_unclean`."""
        return self._portal.run(
            self._client.elect_unclean(partition, broker, partition_epoch=partition_epoch)
        )

    def start_reassignment(
        self, partition: model.PartitionName, target: Sequence[str], *, partition_epoch: int = 0
    ) -> int:
        """Start to move a partition to brokers; see `AdminClient.start_reassignment`."""
        return self._portal.run(
            self._client.start_reassignment(partition, target, partition_epoch=partition_epoch)
        )

    def cancel_reassignment(
        self, partition: model.PartitionName, *, partition_epoch: int = 0, is_unclean: bool = False
    ) -> int:
        """Cancel the reassignment of a partition; see `AdminClient.cancel_reassignment`."""
        return self._portal.run(
            self._client.cancel_reassignment(
                partition, partition_epoch=partition_epoch, is_unclean=is_unclean
            )
        )

    def bootstrap(self, cluster_id: str, members: Sequence[model.Member]) -> None:
        """Form a cluster of the listed brokers; see `AdminClient.bootstrap`."""
        self._portal.run(self._client.bootstrap(cluster_id, members))

    def transfer_metadata_leadership(self, to: str = "") -> str:
        """Transfer metadata leadership; see `AdminClient.transfer_metadata_leadership`."""
        return self._portal.run(self._client.transfer_metadata_leadership(to))

    def add_learner(self, member: model.Member) -> None:
        """Add a learner to the metadata group; see `AdminClient.add_learner`."""
        self._portal.run(self._client.add_learner(member))

    def promote_learner(self, member: model.Member) -> None:
        """Promote a learner that has caught up to voter; see `AdminClient.promote_learner`."""
        self._portal.run(self._client.promote_learner(member))

    def remove_member(self, member: model.Member) -> None:
        """Remove a member from the metadata group; see `AdminClient.remove_member`."""
        self._portal.run(self._client.remove_member(member))
