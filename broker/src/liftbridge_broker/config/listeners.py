"""Additional listeners for clients: joins their settings, which are lists, by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from liftbridge_broker.config.given import Values
from liftbridge_broker.config.options import ListenerOptions
from liftbridge_broker.config.settings import OFF
from liftbridge_broker.config.values import Address, parse_address
from liftbridge_broker.model.listeners import HOST_LENGTH_MAX, LISTENERS_MAX, is_listener_name

WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_OTHER_PORTS: Final = ("listen", "metrics.listen", "admin.listen")


def read_addresses(items: Iterable[str]) -> dict[str, Address]:
    """Parse addresses by listener, from texts such as `outside=broker-1.example.com:9392`.

    An address without a host, such as `outside=:9392`, gets the wildcard host.

    Raises:
        ValueError: A text is not such a pair, or a name is repeated; the message begins with it.
    """
    addresses: dict[str, Address] = {}
    for item in items:
        name, separator, text = item.partition("=")
        if not separator or not is_listener_name(name):
            raise ValueError(f"{item[:60]!r} is not a name and an address such as outside=:9392")
        if name in addresses:
            raise ValueError(f"{name} is listed twice")
        try:
            addresses[name] = parse_address(text)
        except ValueError as error:
            raise ValueError(f"{item[:60]!r} {error}") from error
    return addresses


def listener_options(values: Values) -> tuple[ListenerOptions, ...]:
    """Build the additional listeners, in the order given.

    Raises:
        ConfigError: A text breaks the rules, a name is unknown, or two listeners have one port.
    """
    bound = _read(values, "listeners")
    if len(bound) > LISTENERS_MAX:
        raise values.refusal(
            "listeners", f"has {len(bound)} entries, at most {LISTENERS_MAX} are allowed"
        )
    _check_ports(values, bound)
    if values.is_given("listeners.advertised") and values.is_given("listeners.advertised.file"):
        raise values.refusal(
            "listeners.advertised", "cannot be set together with listeners.advertised.file"
        )
    if len(values.text("listeners.host")) > HOST_LENGTH_MAX:
        raise values.refusal("listeners.host", f"is longer than {HOST_LENGTH_MAX} characters")
    advertised = _read(values, "listeners.advertised")
    _check_names(values, "listeners.advertised", advertised, bound)
    plain = values.items("listeners.plain")
    _check_names(values, "listeners.plain", plain, bound)
    has_tls = values.is_given("tls.cert")
    return tuple(
        ListenerOptions(
            name=name,
            host=address.host,
            port=address.port,
            has_tls=has_tls and name not in plain,
            advertised=advertised_of(
                advertised.get(name),
                values.text("listeners.host"),
                address.host,
                values.text("host"),
            ),
        )
        for name, address in bound.items()
    )


def advertised_of(configured: Address | None, *hosts: str) -> tuple[str, int]:
    """Address of a listener that clients receive.

    Args:
        configured: Configured address, if any.
        hosts: Fallbacks; the first that is neither empty nor a wildcard applies.

    Returns:
        Host and port; port 0 means the port that was bound.
    """
    given = "" if configured is None else configured.host
    host = next((one for one in (given, *hosts) if one and one not in WILDCARDS), "localhost")
    return host, 0 if configured is None else configured.port


def _read(values: Values, key: str) -> dict[str, Address]:
    try:
        return read_addresses(values.items(key))
    except ValueError as error:
        raise values.refusal(key, f"is invalid: {error}") from error


def _check_names(
    values: Values, key: str, names: Iterable[str], known: Mapping[str, Address]
) -> None:
    for name in names:
        if name not in known:
            raise values.refusal(key, f"names {name[:40]!r}, which is not in listeners")


def _check_ports(values: Values, bound: Mapping[str, Address]) -> None:
    taken: list[tuple[str, Address]] = [(key, values.address(key)) for key in _OTHER_PORTS]
    for name, address in bound.items():
        owner = _owner_of(address, taken)
        if owner:
            raise values.refusal(
                "listeners", f"gives {name} port {address.port}, which {owner} already uses"
            )
        taken.append((name, address))


def _owner_of(address: Address, taken: Sequence[tuple[str, Address]]) -> str:
    """Return the listener that has the port on this or every address; empty for none."""
    for owner, other in taken:
        meet = address.host == other.host or not WILDCARDS.isdisjoint((address.host, other.host))
        if other != OFF and address.port == other.port != 0 and meet:
            return owner
    return ""
