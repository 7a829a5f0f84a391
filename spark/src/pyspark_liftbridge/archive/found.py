"""Entry of an object in a listing of a store."""

from typing import NamedTuple


class Found(NamedTuple):
    """An object in a listing.

    Attributes:
        path: Below the root, with `/` between.
        size: Bytes.
        modified_ms: When it was written, in milliseconds since 1970 by the clock of the store.
    """

    path: str
    size: int
    modified_ms: int
