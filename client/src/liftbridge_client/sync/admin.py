"""The blocking admin client."""

from datetime import timedelta

from liftbridge_client.aio.access import AccessControl
from liftbridge_client.aio.admin import AdminClient, connect_admin
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


class SyncAccessControl(Blocking[AccessControl]):
    """Blocking access rules of a cluster; see `AccessControl`."""

    rules = blocking(AccessControl.rules)
    change = blocking(AccessControl.change)
    disable = blocking(AccessControl.disable)
    check = blocking(AccessControl.check)
    convert_policy = blocking(AccessControl.convert_policy)
    nats_permissions = blocking(AccessControl.nats_permissions)


class SyncAdminClient(BlockingClient[AdminClient]):
    """Blocking administration of a cluster; see `AdminClient`."""

    @property
    def access(self) -> SyncAccessControl:
        """The access rules of the cluster; see `AdminClient.access`."""
        return SyncAccessControl(self._portal, self._original.access)

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
    keys_status = blocking(AdminClient.keys_status)
    rotate_keys = blocking(AdminClient.rotate_keys)
    rewrap_keys = blocking(AdminClient.rewrap_keys)
    set_stream_owner = blocking(AdminClient.set_stream_owner)
    create_token = blocking(AdminClient.create_token)
    tokens = iterating(AdminClient.tokens)
    revoke_token = blocking(AdminClient.revoke_token)
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
