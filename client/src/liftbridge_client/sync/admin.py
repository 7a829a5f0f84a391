"""The blocking admin client."""

from datetime import timedelta

from liftbridge_client.aio.admin.access import AccessControl
from liftbridge_client.aio.admin.api_tokens import ApiTokens
from liftbridge_client.aio.admin.client import AdminClient, connect_admin
from liftbridge_client.aio.admin.master_keys import MasterKeys
from liftbridge_client.aio.admin.quotas import Quotas
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


class SyncApiTokens(Blocking[ApiTokens]):
    """Blocking API tokens of a cluster; see `ApiTokens`."""

    create = blocking(ApiTokens.create)
    list = iterating(ApiTokens.list)
    revoke = blocking(ApiTokens.revoke)


class SyncQuotas(Blocking[Quotas]):
    """Blocking quotas of a cluster; see `Quotas`."""

    list = iterating(Quotas.list)
    set = blocking(Quotas.set)
    remove = blocking(Quotas.remove)


class SyncMasterKeys(Blocking[MasterKeys]):
    """Blocking master keys of encrypted streams; see `MasterKeys`."""

    status = blocking(MasterKeys.status)
    rotate = blocking(MasterKeys.rotate)
    rewrap = blocking(MasterKeys.rewrap)


class SyncAdminClient(BlockingClient[AdminClient]):
    """Blocking administration of a cluster; see `AdminClient`."""

    @property
    def access(self) -> SyncAccessControl:
        """The access rules of the cluster; see `AdminClient.access`."""
        return SyncAccessControl(self._portal, self._original.access)

    @property
    def tokens(self) -> SyncApiTokens:
        """The API tokens of the cluster; see `AdminClient.tokens`."""
        return SyncApiTokens(self._portal, self._original.tokens)

    @property
    def quotas(self) -> SyncQuotas:
        """The quotas of the cluster; see `AdminClient.quotas`."""
        return SyncQuotas(self._portal, self._original.quotas)

    @property
    def keys(self) -> SyncMasterKeys:
        """The master keys of encrypted streams; see `AdminClient.keys`."""
        return SyncMasterKeys(self._portal, self._original.keys)

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
