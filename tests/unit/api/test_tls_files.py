"""Files of TLS: whatever is wrong with one, the error names it and says what it has to be."""

import shutil
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_broker.errors import ConfigError
from liftbridge_testkit.certs import Authority

FILES: Final = ("certificate", "key", "client_ca")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    """Files that are right, to be spoiled."""
    issued = authority.issue("server")
    made = [shutil.copy(one, tmp_path) for one in (issued.cert, issued.key, authority.cert)]
    certificate, key, client_ca = map(Path, made)
    return TlsFiles(
        certificate=certificate,
        key=key,
        client_ca=client_ca,
        needs_client_certificate=True,
        setting="admin.tls",
    )


def _to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _to_der(path: Path) -> None:
    body = [line for line in path.read_text().splitlines() if not line.startswith("-----")]
    path.write_bytes(ssl.PEM_cert_to_DER_cert("\n".join((_BEGIN, *body, _END))))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _cut(path: Path) -> None:
    data = path.read_bytes()
    _write(path, data[: len(data) // 2])


def _spoil(path: Path) -> None:
    """Leave the frame, and put something else into it."""
    head, *_, tail = path.read_text().splitlines()
    path.write_text(f"{head}\nbm90aGluZw==\n{tail}\n")


_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
DAMAGE: Final[dict[str, Callable[[Path], None]]] = {
    "missing": Path.unlink,
    "directory": _to_directory,
    "empty": lambda path: _write(path, b""),
    "binary": lambda path: _write(path, bytes(range(256))),
    "der": _to_der,
    "cut": _cut,
    "spoilt": _spoil,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_error_names_the_file_and_its_settings(files: TlsFiles, name: str, damage: str) -> None:
    path: Path = getattr(files, name)
    DAMAGE[damage](path)
    with pytest.raises(ConfigError) as refused:
        ServerTls(files)
    text = refused.value.text
    assert text.startswith("admin.tls: ")
    assert str(path) in text
    assert "[Errno" not in text


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("other", FILES)
def test_file_in_the_place_of_another_is_refused_by_its_rule(
    files: TlsFiles, name: str, other: str
) -> None:
    is_key = [one == "key" for one in (name, other)]
    swapped = replace(files, **{name: getattr(files, other)})
    if is_key[0] is is_key[1] and name in (other, "client_ca"):
        ServerTls(swapped)
        return
    rule = "private key" if name == "key" or is_key[0] is is_key[1] else "certificate"
    with pytest.raises(ConfigError, match=f"(holds no|is not the) {rule}"):
        ServerTls(swapped)


def test_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(files: TlsFiles) -> None:
    locked = files.key.with_suffix(".locked")
    command = ["openssl", "pkey", "-aes256", "-passout", "pass:secret"]
    subprocess.run([*command, "-in", files.key, "-out", locked], check=True, capture_output=True)
    with pytest.raises(ConfigError, match=rf"{locked} has a passphrase.*openssl pkey -in"):
        ServerTls(replace(files, key=locked))


def test_reload_that_is_refused_leaves_all_as_it_was(files: TlsFiles) -> None:
    tls = ServerTls(files)
    before = tls.context, tls.loaded, tls.expires_at
    _cut(files.key)
    with pytest.raises(ConfigError):
        tls.reload()
    assert (tls.context, tls.loaded, tls.expires_at) == before


def _shaken_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """A handshake in memory.

    Raises:
        SSLError: A side refused the other.
    """
    pipes = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    ends = [
        server.wrap_bio(pipes[0], pipes[1], server_side=True),
        client.wrap_bio(pipes[1], pipes[0], server_hostname="localhost"),
    ]
    waiting = list(reversed(ends))
    while waiting:
        end = waiting.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(end)


def test_revoked_client_is_turned_away_and_others_are_not(
    files: TlsFiles, authority: Authority
) -> None:
    assert files.client_ca is not None
    mallory, alice = authority.issue("mallory"), authority.issue("alice")
    revoked = authority.revoked(mallory)
    files.client_ca.write_bytes(authority.cert.read_bytes() + revoked.read_bytes())
    server = ServerTls(files).context
    for one in (alice, mallory):
        client = ssl.create_default_context(cafile=str(authority.cert))
        client.load_cert_chain(one.cert, one.key)
        if one is alice:
            _shaken_hands(server, client)
        else:
            with pytest.raises(ssl.SSLError, match="revoked"):
                _shaken_hands(server, client)
