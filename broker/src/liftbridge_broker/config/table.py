"""The table of every setting, in the order of the reference.

Names follow the original; where it has a key, ours has the same name and meaning, minus its
defects, and the same default unless `doc` says otherwise. `docs/reference/configuration.md`, the
flags of the command and the names of environment variables are generated from this table.
"""

from typing import Final

from liftbridge_broker.config import (
    cluster_settings,
    identity_settings,
    process_settings,
    stream_settings,
)
from liftbridge_broker.config.settings import Setting

SECTIONS: Final[dict[str, tuple[Setting, ...]]] = {
    "Server": process_settings.SERVER,
    "gRPC": process_settings.GRPC,
    "TLS and authorization": process_settings.TLS,
    "Identities of clients": identity_settings.IDENTITY,
    "NATS": process_settings.NATS,
    "Streams": stream_settings.STREAMS,
    "Limits": stream_settings.LIMITS,
    "Clustering": cluster_settings.CLUSTERING,
    "Activity, cursors, groups": stream_settings.FEATURES,
    "Metrics": process_settings.METRICS,
    "Operators": process_settings.ADMIN,
}

SETTINGS: Final[dict[str, Setting]] = {
    setting.key: setting for section in SECTIONS.values() for setting in section
}
