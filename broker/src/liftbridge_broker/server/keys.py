"""Keys in files: the cluster's secret, and master keys of encrypted streams.

They are read at the start, and again when their file changes.
"""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.adapters.keys.ring import MasterKeyRing
from liftbridge_broker.adapters.secret_file import read_secret
from liftbridge_broker.config.options import EncryptionOptions
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.node.peers.peer_sessions import PeerSessions
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring, parse_keys

_SETTING: Final = "clustering.secret.file"


def read_keyring(path: str) -> Keyring:
    """Read the keys of a file; for an empty `path`, return those of a broker without a secret.

    Raises:
        ConfigError: The file cannot be read, or its text holds no key.
    """
    if not path:
        return OPEN_KEYRING
    return parse_keys(read_secret(path, _SETTING), path)


def log_keys(keys: Keyring, observer: Observer) -> None:
    """Log the keys in force, and warn while unsigned frames are accepted."""
    if keys.first_key is not None:
        observer.transition("cluster_keys_read", {"keys": list(keys.key_ids)})
    if keys.accepts_unsigned:
        observer.transition("peer_frames_unauthenticated", {"keys": list(keys.key_ids)})


def renew_keys(path: str, sessions: PeerSessions, observer: Observer) -> None:
    """Read the file again; if it is invalid, keep the current keys."""
    try:
        keys = read_keyring(path)
    except LiftbridgeError as error:
        observer.transition("configuration_reload_refused", {"reason": error.text})
        return
    if keys != sessions.keys:
        sessions.set_keys(keys)
        log_keys(keys, observer)


def open_masters(
    options: EncryptionOptions,
    observer: Observer,
    *,
    post: Callable[[Callable[[], None]], object],
    on_changed: Callable[[], None],
) -> MasterKeyRing:
    """Read the master keys; see `MasterKeyRing` for the arguments.

    Raises:
        ConfigError: The file cannot be read, or holds an invalid line.
    """

    def changed() -> None:
        log_masters(masters, observer)
        on_changed()

    masters = MasterKeyRing(
        file=options.file,
        command=options.command,
        environment=options.key,
        post=post,
        on_changed=changed,
        on_failed=lambda reason: observer.transition("key_service_failed", {"reason": reason}),
    )
    if masters.known:
        log_masters(masters, observer)
    return masters


def log_masters(masters: MasterKeyRing, observer: Observer) -> None:
    """Log the ids of the master keys."""
    keys = [key.key_id for key in masters.known]
    observer.transition("master_keys_read", {"keys": keys})


def renew_masters(masters: MasterKeyRing, observer: Observer) -> None:
    """Read the file again; if it is invalid, keep the current keys."""
    try:
        masters.renew()
    except LiftbridgeError as error:
        observer.transition("configuration_reload_refused", {"reason": error.text})
