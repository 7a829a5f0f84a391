"""Profiles: servers, TLS and credentials under a name, in one TOML file.

The file is `profiles.toml` in the user's configuration folder (`$XDG_CONFIG_HOME/liftbridge`), or
the path in `LIFTBRIDGE_CONFIG`. It is written whole and renamed into place, readable by its owner
only.

    current = "prod"

    [profiles.prod]
    servers = "a:9292,b:9292"
    ca = "/etc/liftbridge/ca.pem"
    cert = "/etc/liftbridge/me.pem"
    key = "/etc/liftbridge/me.key"
    server_name = ""
    token_file = "/run/secrets/token"
    admin = "a:9294,b:9294"

Paths that are not absolute are those of files beside it, so that a folder with such a file can be
moved or mounted anywhere.
"""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs
import tomli_w

from liftbridge_client.cli import values
from liftbridge_client.core.addresses import ADMIN_PORT, PORT_DEFAULT, parse_addresses
from liftbridge_client.errors import UsageError
from liftbridge_client.model import TlsFiles, Token

SERVERS_DEFAULT: Final = "localhost:9292"
ADMIN_DEFAULT: Final = f"localhost:{ADMIN_PORT}"
NAME_LENGTH_MAX: Final = 64
_FLAGS: Final = ("tls", "plain_token")
_FILES: Final = ("ca", "cert", "key", "token_file")
NO_HOME: Final = "this user has no home directory: set HOME to one"


class Profile(NamedTuple):
    """One connection; an empty string means not set.

    Attributes:
        servers: Addresses, with commas.
        tls: Whether connections are encrypted; implied by any of the files below.
        ca: Authorities for the server's certificate, a PEM file.
        cert: Certificate presented to the server: the credentials, a PEM file.
        key: Its private key, a PEM file.
        server_name: Name expected in the server's certificate instead of the host.
        admin: Addresses of the ports for operators, with commas.
        token_file: File with the bearer token presented to brokers.
        plain_token: Whether the token is sent without TLS too.
    """

    servers: str = SERVERS_DEFAULT
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""
    admin: str = ADMIN_DEFAULT
    token_file: str = ""
    plain_token: bool = False

    def tls_files(self) -> TlsFiles | None:
        """Return the TLS files of the connection, `None` for plaintext."""
        if not (self.tls or self.ca or self.cert or self.key):
            return None
        return TlsFiles(
            ca=Path(self.ca) if self.ca else None,
            cert=Path(self.cert) if self.cert else None,
            key=Path(self.key) if self.key else None,
            server_name=self.server_name,
        )

    def token(self, given: Token | None = None) -> Token | None:
        """Return the token of the connection: one that is given, else that of the profile."""
        if given is not None:
            return replace(given, allows_plain=self.plain_token)
        if not self.token_file:
            return None
        return Token(file=Path(self.token_file), allows_plain=self.plain_token)


class Profiles(NamedTuple):
    """Content of the file.

    Attributes:
        current: Name of the profile in use, empty for none.
        by_name: All profiles.
    """

    current: str
    by_name: Mapping[str, Profile]


def user_folder(find: Callable[[str], Path]) -> Path | None:
    """Return the folder of the user; `None` without a home directory, as in most containers.

    Args:
        find: A function of `platformdirs`.
    """
    try:
        return find("liftbridge")
    except RuntimeError:
        return None


def config_path() -> Path | None:
    """Return the path of the file of profiles; `None` if there is no folder for it."""
    if override := os.environ.get("LIFTBRIDGE_CONFIG"):
        return Path(override)
    folder = user_folder(platformdirs.user_config_path)
    return None if folder is None else folder / "profiles.toml"


def load() -> Profiles:
    """Read the file; a missing file means no profiles.

    Raises:
        UsageError: The file is invalid.
    """
    path = config_path()
    if path is None:
        return Profiles("", {})
    try:
        data = _read(path)
    except FileNotFoundError:
        return Profiles("", {})
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: must be a text file in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: must be TOML: {error}; correct or remove the file") from error
    for key in data:
        if key not in ("current", "profiles"):
            raise UsageError(f"{path}: unknown key {key!r}: must be `current` or `profiles`")
    tables = data.get("profiles", {})
    current = data.get("current", "")
    if not isinstance(tables, dict) or not isinstance(current, str):
        raise UsageError(f"{path}: `current` must be a name and `profiles` a table")
    return Profiles(current, {name: _profile(path, name, tables[name]) for name in tables})


def _read(path: Path) -> dict[str, object]:
    """Parse the file as TOML; some editors begin it with a byte order mark."""
    if path.is_fifo():
        raise UsageError(f"{path}: must be a file, but is a pipe")
    return tomllib.loads(path.read_text(encoding="utf-8-sig"))


def _profile(path: Path, name: str, table: object) -> Profile:
    place = f"{path}: profiles.{name}"
    if not isinstance(table, dict):
        raise UsageError(f"{place} {values.shown(table)}: must be a table")
    for key, value in table.items():
        if key not in Profile._fields:
            known = ", ".join(Profile._fields)
            raise UsageError(f"{place}.{key}: unknown key: must be one of {known}")
        is_flag = key in _FLAGS
        if not isinstance(value, bool if is_flag else str):
            rule = "must be true or false" if is_flag else "must be text in quotes"
            raise UsageError(f"{place}.{key} {values.shown(value)}: {rule}")
    beside = {key: str(path.parent / table[key]) for key in _FILES if table.get(key)}
    profile = Profile(**{**table, **beside})
    for key, addresses, port in (
        ("servers", profile.servers, PORT_DEFAULT),
        ("admin", profile.admin, ADMIN_PORT),
    ):
        try:
            parse_addresses(addresses, port)
        except UsageError as error:
            raise UsageError(f"{place}.{key}: {error}") from error
    return profile


def store(profiles: Profiles) -> None:
    """Write the file.

    Raises:
        UsageError: It cannot be written, or there is no folder for it.
    """
    path = config_path()
    if path is None:
        raise UsageError(NO_HOME)
    document: dict[str, object] = {
        "profiles": {
            name: {key: value for key, value in profile._asdict().items() if value}
            for name, profile in sorted(profiles.by_name.items())
        }
    }
    if profiles.current:
        document = {"current": profiles.current, **document}
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(tomli_w.dumps(document))
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def check_name(name: str) -> str:
    """Check the name of a profile.

    Raises:
        UsageError: It is empty, too long, or has other characters than letters, digits, -, _ and .
    """
    is_word = name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    if not is_word or len(name) > NAME_LENGTH_MAX:
        raise UsageError(
            f"profile name {name!r}: must be 1 to {NAME_LENGTH_MAX} letters, digits or any of '-_.'"
        )
    return name


def origin(*, given: str | None, profile: str | None) -> str:
    """Describe the source of a connection's addresses.

    Args:
        given: Addresses from the command line or a variable.
        profile: Name of a profile, from the command line or a variable.
    """
    if given:
        return "given"
    name = profile or load().current
    return f"profile {name}" if name else "the default, as there is no profile"


def choose(*, servers: str | None, profile: str | None, admin: str | None = None) -> Profile:
    """Select a connection: the named or current profile, with any given addresses instead.

    Args:
        servers: From the command line or `LIFTBRIDGE_SERVERS`.
        admin: From the command line or `LIFTBRIDGE_ADMIN`.
        profile: From the command line or `LIFTBRIDGE_PROFILE`.

    Raises:
        UsageError: There is no such profile.
    """
    if (servers or admin) and not profile:
        return Profile(servers=servers or SERVERS_DEFAULT, admin=admin or ADMIN_DEFAULT)
    profiles = load()
    name = profile or profiles.current
    if name and name not in profiles.by_name:
        known = ", ".join(sorted(profiles.by_name)) or "none"
        origin = "" if profile else f", which is the current one in {config_path()}"
        raise UsageError(
            f"no such profile: {name}{origin} (known: {known}); choose one with --profile or "
            "`liftbridge profile use`"
        )
    chosen = profiles.by_name[name] if name else Profile()
    return chosen._replace(servers=servers or chosen.servers, admin=admin or chosen.admin)
