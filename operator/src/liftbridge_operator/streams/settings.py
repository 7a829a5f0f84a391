"""Settings of streams that a specification requests, in the units of the brokers.

Other settings are left to the brokers, and never compared.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from liftbridge_operator.model.base import camel
from liftbridge_operator.model.stream import StreamConfig, StreamSpec
from liftbridge_operator.model.units import MILLISECOND_NS
from liftbridge_operator.model.values import duration_ns, size_bytes

Value: TypeAlias = int | bool | str

Settings: TypeAlias = Mapping[str, Value]
"""All settings of a stream by the names of the fields of `StreamConfig`; times are milliseconds."""

FIXED: Final = frozenset({"encryption"})
"""Settings that are fixed when a stream is created."""


def _milliseconds(text: str) -> int:
    return -(-duration_ns(text) // MILLISECOND_NS)


_READ: Final[dict[str, Callable[[Any], Value]]] = {
    "retention_max_bytes": size_bytes,
    "retention_max_age": _milliseconds,
    "cleaner_interval": _milliseconds,
    "segment_max_bytes": size_bytes,
    "segment_max_age": _milliseconds,
    "tombstone_retention": _milliseconds,
    "auto_pause_time": _milliseconds,
    "fsync_policy": str,
    "unclean_mode": str,
    "retention_cursor_max_bytes": size_bytes,
}


def settings_of(config: StreamConfig, factor: int) -> dict[str, Value]:
    """Return the settings that a specification requests, by name.

    Args:
        config: The settings of a resource.
        factor: Replicas of each partition; less than 1 while that is not known.
    """
    found: dict[str, Value] = {}
    for name in StreamConfig.model_fields:
        given = getattr(config, name)
        if given is not None:
            found[name] = _READ[name](given) if name in _READ else given
    if found.get("min_isr") == 0:
        del found["min_isr"]
        if factor >= 1:
            found["min_isr"] = 2 if factor >= 3 else 1
    return found


def differences(wanted: dict[str, Value], present: Settings) -> dict[str, Value]:
    """Return desired settings that differ from the present ones."""
    return {name: value for name, value in wanted.items() if present[name] != value}


def asked_of(spec: StreamSpec) -> tuple[str, ...]:
    """Return paths of settings that a specification sets, and does not leave to the brokers."""
    given = [
        path_of(name)
        for name in StreamConfig.model_fields
        if getattr(spec.config, name) is not None
    ]
    return (*given, "replicationFactor") if spec.replication_factor > 0 else tuple(given)


def path_of(name: str) -> str:
    """Return the path of a setting in a manifest: `config.minISR`."""
    return f"config.{camel(name)}"
