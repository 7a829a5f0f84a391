"""When each group changed last, also one that has ended, as far as a broker remembers it."""

from collections import OrderedDict
from typing import Final

from liftbridge_broker.model.groups import GROUPS_MAX
from liftbridge_broker.model.ids import MetadataIndex

REMEMBERED_MAX: Final = 2 * GROUPS_MAX
"""Groups remembered: all that exist, and as many that have ended."""


class Turnover:
    """Metadata indexes of the last change of members, assignment or coordinator."""

    def __init__(self) -> None:
        """Start with nothing remembered."""
        self._changed: OrderedDict[str, MetadataIndex] = OrderedDict()
        self._forgotten = MetadataIndex(0)

    def note(self, group_id: str, index: MetadataIndex) -> None:
        """Note that a group changed or ended."""
        self._changed.pop(group_id, None)
        self._changed[group_id] = index
        if len(self._changed) > REMEMBERED_MAX:
            _, self._forgotten = self._changed.popitem(last=False)

    def forget(self, index: MetadataIndex) -> None:
        """Note that any group may have changed, up to an index."""
        self._changed.clear()
        self._forgotten = index

    def changed_at(self, group_id: str) -> MetadataIndex:
        """Return the index after which a group has not changed."""
        return self._changed.get(group_id, self._forgotten)
