"""Decides which changes a running broker applies at SIGHUP, and which need a restart."""

from dataclasses import replace
from typing import NamedTuple

from liftbridge_broker.config.options import BrokerOptions, ListenerOptions
from liftbridge_broker.config.settings import MASK
from liftbridge_broker.config.table import SETTINGS


class Change(NamedTuple):
    """A setting whose value differs; secrets are masked on both sides."""

    key: str
    before: str
    after: str


class ReloadDiff(NamedTuple):
    """Differences between a new configuration and the one in force.

    Attributes:
        applied: Changes that `reloaded` applies.
        restart_needed: Changes that wait for a restart.
    """

    applied: tuple[Change, ...]
    restart_needed: tuple[Change, ...]


def reloadable_diff(old: BrokerOptions, new: BrokerOptions) -> ReloadDiff:
    """Sort the differences by whether a running broker applies them.

    Args:
        old: Options in force, made by `load`.
        new: Options just loaded.
    """
    changes = [
        Change(before.key, before.text, after.text)
        for before, after in zip(old.effective, new.effective, strict=True)
        if before.has_effect and before.text != after.text
    ]
    changes += _secret_changes(old, new)
    return ReloadDiff(
        applied=tuple(change for change in changes if SETTINGS[change.key].is_reloadable),
        restart_needed=tuple(
            change for change in changes if not SETTINGS[change.key].is_reloadable
        ),
    )


def reloaded(old: BrokerOptions, new: BrokerOptions) -> BrokerOptions:
    """Return the options in force with the reloadable ones of `new`."""
    fresh = {setting.key: setting for setting in new.effective}
    return replace(
        old,
        data=replace(
            old.data,
            trash_grace_ns=new.data.trash_grace_ns,
            free_bytes_min=new.data.free_bytes_min,
        ),
        listeners=tuple(_readvertised(listener, new) for listener in old.listeners),
        identity=new.identity,
        logging=replace(old.logging, level=new.logging.level),
        streams=new.streams,
        fsync=new.fsync,
        limits=new.limits,
        groups=new.groups,
        metrics=replace(old.metrics, streams_max=new.metrics.streams_max),
        shutdown_timeout_ns=new.shutdown_timeout_ns,
        hand_over_timeout_ns=new.hand_over_timeout_ns,
        effective=tuple(
            fresh[setting.key] if setting.is_reloadable else setting for setting in old.effective
        ),
    )


def _readvertised(listener: ListenerOptions, new: BrokerOptions) -> ListenerOptions:
    """Return a listener with its new advertised address; removing one needs a restart."""
    fresh = next((one for one in new.listeners if one.name == listener.name), listener)
    return replace(listener, advertised=fresh.advertised)


def _secret_changes(old: BrokerOptions, new: BrokerOptions) -> list[Change]:
    """Changes that masking hides: both texts are the mask, the values differ."""
    pairs = (
        ("nats.servers", ",".join(old.nats.servers), ",".join(new.nats.servers)),
        ("nats.password", old.nats.password, new.nats.password),
        ("nats.token", old.nats.token, new.nats.token),
        ("encryption.key", old.encryption.key, new.encryption.key),
    )
    shown = {setting.key: setting.text for setting in old.effective}
    fresh = {setting.key: setting.text for setting in new.effective}
    return [
        Change(key, shown[key] or MASK, fresh[key] or MASK)
        for key, before, after in pairs
        if before != after and shown[key] == fresh[key]
    ]
