"""The id of an archive, common to all tables below a root, for any spelling of its address.

    <root>/_root/id.json        {"id":"3f9c0a1b2d4e"}

A copy of the archive has the same id. Before archiving into a copy continues, remove this file;
otherwise retention follows the archive that is ahead and removes records that the other archive
lacks.
"""

import json
import re
import secrets
from typing import Final

from pyspark_liftbridge.archive.delta_log.fields import Fields, parse_json
from pyspark_liftbridge.archive.errors import DamagedError, StoreError, UnknownOutcomeError
from pyspark_liftbridge.archive.stores.store import Store

PATH: Final = "_root/id.json"
_ID_BYTES: Final = 6
_BYTES_MAX: Final = 1 << 10
_TRIES_MAX: Final = 5


def root_id(store: Store) -> str:
    """Read the id of an archive; create a random one if there is none.

    Args:
        store: The root of the archive.

    Raises:
        DamagedError: The file has no id.
        UnknownOutcomeError: The store does not answer; a retry does no harm.
    """
    failure: StoreError | None = None
    for _ in range(_TRIES_MAX):
        try:
            data = store.read(PATH, bytes_max=_BYTES_MAX)
            if data is not None:
                return _id(data)
            store.create(PATH, json.dumps({"id": secrets.token_hex(_ID_BYTES)}).encode())
        except StoreError as error:
            failure = error
    raise UnknownOutcomeError(
        f"{PATH}: neither read nor created in {_TRIES_MAX} attempts ({failure})"
    )


def _id(data: bytes) -> str:
    text = Fields.of(parse_json(data, PATH), PATH).text("id")
    if not re.fullmatch(r"[0-9a-f]{12}", text):
        raise DamagedError(f"{PATH}: {text!r} is not an id of 12 hexadecimal digits")
    return text
