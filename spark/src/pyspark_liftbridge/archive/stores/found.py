"""Entry of an object in a listing of a store."""

from typing import NamedTuple


class Found(NamedTuple):
    """An object in a listing.

    Attributes:
        path: Path below the root, with `/` between names.
        size: Size in bytes.
        modified_ms: Time at which it was written, in milliseconds since 1970 by the clock of the
            store.
    """

    path: str
    size: int
    modified_ms: int
