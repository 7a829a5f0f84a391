"""Every PEM file that the client takes, with everything that is none: named, with rule and remedy.

The files are found from the fields of `TlsFiles` and from the options of the command.
"""

import base64
import dataclasses
import ssl
import subprocess

import pytest

from liftbridge_client import TlsFiles, UsageError, connect
from liftbridge_client.cli.app import run
from liftbridge_client.cli.profile_commands import add
from liftbridge_client.pem import read_pem
from liftbridge_testkit.certs import Authority

FIELDS = [one.name for one in dataclasses.fields(TlsFiles) if "Path" in str(one.type)]
RULES = {"ca": "certificates in PEM", "cert": "certificates in PEM", "key": "private key in PEM"}
REMEDIES = {"ca": "openssl x509", "cert": "openssl x509", "key": "openssl pkey"}
WRONG = {
    "empty": lambda _: b"",
    "text": lambda _: b"no certificate",
    "binary": lambda _: bytes(range(256)),
    "DER": lambda good: base64.b64decode(b"".join(good.splitlines()[1:-1])),
    "cut": lambda good: good[: len(good) // 2],
    "no end": lambda good: good.rpartition(b"-----END")[0],
    "spoilt": lambda good: good.replace(good.splitlines()[1][:40], b"A" * 40),
    "UTF-16": lambda good: good.decode().encode("utf-16"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    authority = Authority(folder)
    mine = authority.issue("mine")
    other = authority.issue("other")
    locked = folder / "locked.key"
    made = ["openssl", "pkey", "-in", str(mine.key), "-aes256", "-passout", "pass:secret"]
    subprocess.run([*made, "-out", str(locked)], check=True, capture_output=True)
    files = {"ca": authority.cert, "cert": mine.cert, "key": mine.key}
    return files, other, locked


def refusal(files):
    with pytest.raises(UsageError) as refused:
        read_pem(TlsFiles(**files))
    assert not isinstance(refused.value, ssl.SSLError)
    return str(refused.value), refused.value.advice


def test_good_files_are_taken_whole(good):
    files, _, _ = good
    found = read_pem(TlsFiles(**files))
    assert found._asdict() == {name: path.read_bytes() for name, path in files.items()}
    assert read_pem(TlsFiles()) == (None, None, None)
    assert sorted(FIELDS) == sorted(files)


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("field", FIELDS)
async def test_what_is_no_pem_is_refused_by_name_before_anybody_connects(
    field, case, good, tmp_path
):
    files, _, _ = good
    bad = tmp_path / "bad.pem"
    bad.write_bytes(WRONG[case](files[field].read_bytes()))
    said, advice = refusal({**files, field: bad})
    assert f"`{field}` {bad}" in said
    assert RULES[field] in said
    assert REMEDIES[field] in advice
    client = connect("127.0.0.1:1", tls=TlsFiles(**{**files, field: bad}))
    with pytest.raises(UsageError, match=r"bad\.pem"):
        await client.__aenter__()


@pytest.mark.parametrize("field", FIELDS)
def test_what_cannot_be_read_is_named(field, good, tmp_path):
    files, _, _ = good
    for path in (tmp_path, tmp_path / "absent.pem"):
        said, _ = refusal({**files, field: path})
        assert f"`{field}` {path}" in said


@pytest.mark.parametrize("field", FIELDS)
def test_file_in_the_place_of_another_is_named(field, good):
    files, _, _ = good
    other = files["key"] if field != "key" else files["cert"]
    said, _ = refusal({**files, field: other})
    assert f"`{field}` {other}" in said
    assert RULES[field] in said


def test_certificate_and_key_belong_together(good):
    files, other, locked = good
    said, _ = refusal({**files, "key": other.key})
    assert f"`key` {other.key}" in said
    assert f"`cert` {files['cert']}" in said
    said, advice = refusal({**files, "key": locked})
    assert "without a passphrase" in said
    assert "passphrase" in advice
    for alone, lacking in (("cert", "key"), ("key", "cert")):
        said, _ = refusal({alone: files[alone]})
        assert said == f"TLS: `{alone}` needs `{lacking}`"


def test_certificates_with_comments_in_any_script_are_taken(good, tmp_path):
    files, _, _ = good
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes("# Főtanúsítvány\n".encode() + files["ca"].read_bytes() * 2)
    assert read_pem(TlsFiles(ca=bundle)).ca == bundle.read_bytes()


def file_options():
    """Options of the command that take a file."""
    found = []
    for name, hint in add.__annotations__.items():
        given = next(iter(getattr(hint, "__metadata__", ())), None)
        if getattr(given, "metavar", "") == "FILE":
            found.append(name)
    return found


@pytest.mark.parametrize("option", file_options())
def test_profile_with_a_bad_file_is_not_stored(option, good, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LIFTBRIDGE_CONFIG", str(tmp_path / "profiles.toml"))
    files, _, _ = good
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    given = {**files, option: bad}
    words = [word for name, path in given.items() for word in (f"--{name}", str(path))]
    assert run(["profile", "add", "p", *words]) == 2
    said = capsys.readouterr().err
    assert f"`{option}` {bad}" in said
    assert RULES[option] in said
    assert not (tmp_path / "profiles.toml").exists()


def test_all_files_of_the_command_are_those_of_a_connection():
    assert sorted(file_options()) == sorted(FIELDS)
