"""Blocking access to consumer groups, for people who look after them."""

from liftbridge_client.aio.groups import Groups
from liftbridge_client.sync.blocking import Blocking, blocking


class SyncGroups(Blocking[Groups]):
    """Blocking consumer groups of a cluster; see `Groups`. Returned by `SyncClient.groups`."""

    list = blocking(Groups.list)
    describe = blocking(Groups.describe)
    lag = blocking(Groups.lag)
    plan_reset = blocking(Groups.plan_reset)
    reset = blocking(Groups.reset)
    delete = blocking(Groups.delete)
    evict = blocking(Groups.evict)
