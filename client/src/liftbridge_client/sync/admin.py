"""The blocking admin client."""

from datetime import timedelta

from liftbridge_client.aio.admin import AdminClient, connect_admin
from liftbridge_client.aio.tokens import Tokens
from liftbridge_client.model import TlsFiles
from liftbridge_client.sync.blocking import Blocking, BlockingClient, blocking, iterating


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


class SyncTokens(Blocking[Tokens]):
    """Create, list and revoke API tokens; see `Tokens`. Returned by `SyncAdminClient.tokens`."""

    create = blocking(Tokens.create)
    list = iterating(Tokens.list)
    revoke = blocking(Tokens.revoke)


class SyncAdminClient(BlockingClient[AdminClient]):
    """Blocking administration of a cluster; see `AdminClient`."""

    @property
    def tokens(self) -> SyncTokens:
        """Create, list and revoke API tokens; see `AdminClient.tokens`."""
        return SyncTokens(self._portal, self._original.tokens)

    identities = blocking(AdminClient.identities)
    cluster = blocking(AdminClient.cluster)
    brokers = blocking(AdminClient.brokers)
    broker_status = blocking(AdminClient.broker_status)
    partitions = iterating(AdminClient.partitions)
    reassignments = blocking(AdminClient.reassignments)
    check_restart = blocking(AdminClient.check_restart)
    verify_restart = blocking(AdminClient.verify_restart)
    cordon = blocking(AdminClient.cordon)
    uncordon = blocking(AdminClient.uncordon)
    remove_broker = blocking(AdminClient.remove_broker)
    retire = blocking(AdminClient.retire)
    set_feature_level = blocking(AdminClient.set_feature_level)
    settings = blocking(AdminClient.settings)
    reload = blocking(AdminClient.reload)
    set_catch_up_rate = blocking(AdminClient.set_catch_up_rate)
    set_stream_owner = blocking(AdminClient.set_stream_owner)
    transfer_leadership = blocking(AdminClient.transfer_leadership)
    elect_preferred = blocking(AdminClient.elect_preferred)
    elect_unclean = blocking(AdminClient.elect_unclean)
    start_reassignment = blocking(AdminClient.start_reassignment)
    cancel_reassignment = blocking(AdminClient.cancel_reassignment)
    bootstrap = blocking(AdminClient.bootstrap)
    transfer_metadata_leadership = blocking(AdminClient.transfer_metadata_leadership)
    add_learner = blocking(AdminClient.add_learner)
    promote_learner = blocking(AdminClient.promote_learner)
    remove_member = blocking(AdminClient.remove_member)
