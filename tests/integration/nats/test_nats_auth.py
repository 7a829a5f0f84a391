"""Every way to prove one's identity to a real nats-server, with rotation; TLS and its refusals."""

import asyncio

import pytest

from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.errors import ConfigError, UnavailableError
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.nats_jwt import Operator, user_key
from liftbridge_testkit.nats_link import frame, linked
from liftbridge_testkit.processes import NatsServer


def options(nats, **more):
    scheme = more.pop("scheme", "nats")
    return NatsOptions(
        server_id="a",
        servers=(f"{scheme}://localhost:{nats.port}",),
        **{"reconnect_wait_ms": 20, "connect_attempts_max": 2, **more},
    )


async def check_works(opts):
    async with linked(opts) as (messaging, sink, _):
        messaging.subscribe(1, "x", "")
        await messaging.quiet._connection.flushed()
        messaging.publish_echo([frame("x", b"hello")])
        await sink.until(lambda: sink.payloads(1) == [b"hello"])


async def refusal(opts):
    with pytest.raises(UnavailableError) as caught:
        async with linked(opts):
            pass
    return str(caught.value)


async def test_user_and_password(tmp_path):
    with NatsServer(tmp_path, config="authorization { user: broker, password: topsecret }") as nats:
        await check_works(options(nats, user="broker", password="topsecret"))
        (tmp_path / "password").write_text("topsecret\n")
        await check_works(options(nats, user="broker", password_file=str(tmp_path / "password")))
        text = await refusal(options(nats, user="broker", password="wrongsecret"))
        assert text.endswith("Authorization Violation")
        assert "secret" not in text
        assert "Authorization Violation" in await refusal(options(nats))


async def test_password_in_the_url(tmp_path):
    with NatsServer(tmp_path, config="authorization { user: broker, password: topsecret }") as nats:
        url = f"nats://broker:topsecret@127.0.0.1:{nats.port}"
        await check_works(NatsOptions(server_id="a", servers=(url,)))


async def test_token(tmp_path):
    with NatsServer(tmp_path, config="authorization { token: topsecret }") as nats:
        await check_works(options(nats, token="topsecret"))
        (tmp_path / "token").write_text("topsecret")
        await check_works(options(nats, token_file=str(tmp_path / "token")))
        assert "Authorization Violation" in await refusal(options(nats, token="wrong"))


async def test_nkey(tmp_path):
    key, other = user_key(), user_key()
    config = f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}"
    seed = tmp_path / "user.nk"
    with NatsServer(tmp_path, config=config) as nats:
        seed.write_text(key.seed + "\n")
        await check_works(options(nats, nkey_seed_file=str(seed)))
        seed.write_text(other.seed + "\n")
        assert "Authorization Violation" in await refusal(options(nats, nkey_seed_file=str(seed)))


async def test_creds_with_jwt(tmp_path):
    operator = Operator()
    user = operator.account("A").user("broker")
    stranger = Operator().account("B").user("broker")
    creds = tmp_path / "broker.creds"
    with NatsServer(tmp_path, config=operator.server_config()) as nats:
        creds.write_text(user.creds())
        await check_works(options(nats, credentials_file=str(creds)))
        creds.write_text(user.creds().replace("\n", "\r\n"))
        await check_works(options(nats, credentials_file=str(creds)))
        creds.write_text(stranger.creds())
        text = await refusal(options(nats, credentials_file=str(creds)))
        assert "Authorization Violation" in text
        assert stranger.key.seed not in text


async def test_expired_jwt_is_replaced_by_the_one_in_the_file(tmp_path):
    operator = Operator()
    account = operator.account("A")
    creds = tmp_path / "broker.creds"
    with NatsServer(tmp_path, config=operator.server_config()) as nats:
        creds.write_text(account.user("short", expires_in_s=2).creds())
        async with linked(options(nats, credentials_file=str(creds))) as (
            messaging,
            sink,
            observer,
        ):
            await observer.until_links("nats_disconnected")
            reasons = {fields["reason"] for fields in observer.of("nats_disconnected")}
            assert reasons == {"User Authentication Expired"}
            # The expired one is refused for as long as nobody rotates it.
            await observer.until(
                lambda: any("Expired" not in f["reason"] for f in observer.of("nats_error"))
            )
            creds.write_text(account.user("long").creds())
            await sink.until(lambda: messaging.is_connected)


@pytest.mark.parametrize("kind", ["password", "token", "nkey"])
async def test_rotated_secret_is_read_at_the_next_connection(tmp_path, kind):
    old, new = user_key(), user_key()
    path = tmp_path / "secret"
    configs = {
        "password": "authorization {{ user: broker, password: {0.seed} }}",
        "token": "authorization {{ token: {0.seed} }}",
        "nkey": "authorization {{ users: [ {{ nkey: {0.public} }} ] }}",
    }
    given = {
        "password": {"user": "broker", "password_file": str(path)},
        "token": {"token_file": str(path)},
        "nkey": {"nkey_seed_file": str(path)},
    }
    server = NatsServer(tmp_path, config=configs[kind].format(old))
    with server as nats:
        path.write_text(old.seed)
        async with linked(options(nats, **given[kind])) as (messaging, sink, observer):
            nats.kill()
            server._config = configs[kind].format(new)
            await asyncio.to_thread(nats.start)
            await observer.until(
                lambda: any("Authorization" in f["reason"] for f in observer.of("nats_error"))
            )
            assert not messaging.is_connected
            path.unlink()
            await observer.until(
                lambda: any("cannot read" in f["reason"] for f in observer.of("nats_error"))
            )
            path.write_text(new.seed)
            await sink.until(lambda: messaging.is_connected)
        assert not any(
            old.seed in str(fields) or new.seed in str(fields) for _, fields in observer.transitions
        )


@pytest.mark.parametrize(
    ("setting", "content", "text"),
    [
        ("credentials_file", None, "nats.credentials.file: cannot read"),
        ("credentials_file", b"", "is empty"),
        ("credentials_file", b"-----BEGIN NATS USER JWT-----\n", "lacks a user JWT or a seed"),
        ("credentials_file", b"x" * 70_000, "larger than"),
        ("nkey_seed_file", None, "nats.nkey.seed.file: cannot read"),
        ("nkey_seed_file", b"no seed", "contains no user seed"),
        ("nkey_seed_file", b"SUAAAA", "attempts"),
        ("nkey_seed_file", b"\xff\xfe", "is not UTF-8"),
        ("token_file", b"\n", "is empty"),
    ],
)
async def test_unusable_files_are_named_and_not_repeated(tmp_path, setting, content, text):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with NatsServer(
        tmp_path, config=f"authorization {{ users: [ {{ nkey: {user_key().public} }} ] }}"
    ) as nats:
        told = await refusal(options(nats, **{setting: str(path)}))
    assert text in told
    assert content is None or not content.strip() or content.decode(errors="replace") not in told


async def test_permission_violation_is_told_and_the_link_stays(tmp_path):
    config = """authorization { users: [ {
        user: u, password: p, permissions: { subscribe: "ok.>", publish: "ok.>" } } ] }"""
    with NatsServer(tmp_path, config=config) as nats:
        async with linked(options(nats, user="u", password="p")) as (messaging, sink, observer):
            messaging.subscribe(1, "secret.x", "")
            messaging.subscribe(2, "ok.x", "")
            messaging.publish_echo([frame("secret.y", b"x")])
            await observer.until(lambda: len(observer.of("nats_error")) >= 2)
            told = " ".join(str(fields["reason"]) for fields in observer.of("nats_error"))
            assert 'Permissions Violation for Subscription to "secret.x"' in told
            assert 'Permissions Violation for Publish to "secret.y"' in told
            await messaging.flushed()
            messaging.publish_echo([frame("ok.x", b"fine")])
            await sink.until(lambda: sink.payloads(2) == [b"fine"])
            assert observer.of("nats_disconnected") == []
            assert messaging.quiet.counts.server_errors + messaging.echo.counts.server_errors == 2


# TLS


def tls_config(server, authority, more=""):
    return (
        f"tls {{ cert_file: {server.cert}, key_file: {server.key},"
        f" ca_file: {authority.cert} {more} }}\n"
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certs"))


async def test_tls_with_an_authority(tmp_path, authority):
    server = authority.issue("server")
    with NatsServer(tmp_path, config=tls_config(server, authority)) as nats:
        await check_works(options(nats, tls_ca=str(authority.cert)))
        await check_works(options(nats, tls_ca=str(authority.cert), scheme="tls"))


async def test_burst_over_tls(tmp_path, authority):
    server = authority.issue("server")
    with NatsServer(tmp_path, config=tls_config(server, authority)) as nats:
        async with linked(options(nats, tls_ca=str(authority.cert))) as (messaging, sink, _):
            messaging.subscribe(1, "x", "")
            await messaging.quiet._connection.flushed()
            sent = [b"%06d" % i * 40 for i in range(10_000)]
            messaging.publish_echo([frame("x", payload) for payload in sent])
            await sink.until(lambda: len(sink.payloads(1)) == len(sent))
            assert sink.payloads(1) == sent
            assert messaging.quiet._connection.is_secure


async def test_wrong_authority_name_or_date_is_refused(tmp_path, authority):
    stranger = Authority(tmp_path / "stranger")
    for certificate, trusted, text in (
        (authority.issue("server"), stranger.cert, "certificate verify failed"),
        (
            authority.issue("named", names=("elsewhere",)),
            authority.cert,
            "not valid for 'localhost'",
        ),
        (authority.issue("old", days=-1), authority.cert, "certificate has expired"),
    ):
        with NatsServer(tmp_path, config=tls_config(certificate, authority)) as nats:
            assert text in await refusal(options(nats, tls_ca=str(trusted)))


async def test_unknown_authority_is_refused_without_tls_settings_too(tmp_path, authority):
    with NatsServer(tmp_path, config=tls_config(authority.issue("server"), authority)) as nats:
        assert "certificate verify failed" in await refusal(options(nats))


async def test_mutual_tls(tmp_path, authority):
    server, client = authority.issue("server"), authority.issue("client")
    stranger = Authority(tmp_path / "stranger").issue("client")
    with NatsServer(tmp_path, config=tls_config(server, authority, ", verify: true")) as nats:
        ca = str(authority.cert)
        await check_works(
            options(nats, tls_ca=ca, tls_cert=str(client.cert), tls_key=str(client.key))
        )
        await refusal(options(nats, tls_ca=ca))
        await refusal(
            options(nats, tls_ca=ca, tls_cert=str(stranger.cert), tls_key=str(stranger.key))
        )


async def test_user_by_certificate(tmp_path, authority):
    server = authority.issue("server")
    client = authority.issue("mapped", common_name="broker-a")
    config = (
        tls_config(server, authority, ", verify_and_map: true")
        + 'authorization { users: [ { user: "CN=broker-a" } ] }'
    )
    with NatsServer(tmp_path, config=config) as nats:
        await check_works(
            options(
                nats,
                tls_ca=str(authority.cert),
                tls_cert=str(client.cert),
                tls_key=str(client.key),
            )
        )


async def test_rotated_certificate_is_read_at_the_next_connection(tmp_path):
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    trusted, files = tmp_path / "trusted.pem", tmp_path / "files"
    trusted.write_bytes(old.cert.read_bytes())
    files.mkdir()
    client = old.issue("client")
    cert, key = files / "cert.pem", files / "key.pem"
    cert.write_bytes(client.cert.read_bytes())
    key.write_bytes(client.key.read_bytes())
    server = NatsServer(tmp_path, config=tls_config(old.issue("server"), old, ", verify: true"))
    with server as nats:
        given = options(nats, tls_ca=str(trusted), tls_cert=str(cert), tls_key=str(key))
        async with linked(given) as (messaging, sink, observer):
            nats.kill()
            server._config = tls_config(new.issue("server"), new, ", verify: true")
            await asyncio.to_thread(nats.start)
            await observer.until(
                lambda: any("verify failed" in f["reason"] for f in observer.of("nats_error"))
            )
            client = new.issue("client")
            cert.write_bytes(client.cert.read_bytes())
            key.write_bytes(client.key.read_bytes())
            trusted.write_bytes(new.cert.read_bytes())
            await sink.until(lambda: messaging.is_connected)
            assert messaging.quiet._connection.is_secure


async def test_tls_that_is_configured_is_never_left_out(tmp_path, authority):
    with NatsServer(tmp_path) as nats:
        for given in ({"tls_ca": str(authority.cert)}, {"scheme": "tls"}):
            text = await refusal(options(nats, user="u", password="topsecret", **given))
            assert "does not ask for TLS" in text


async def test_unusable_certificates_are_named(tmp_path, authority):
    client = authority.issue("client")
    other = authority.issue("other")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with NatsServer(tmp_path) as nats:
        for given in (
            {"tls_ca": str(tmp_path / "absent.pem")},
            {"tls_ca": str(junk)},
            {"tls_cert": str(client.cert), "tls_key": str(other.key)},
            {"tls_cert": str(junk), "tls_key": str(junk)},
        ):
            text = await refusal(options(nats, **given))
            assert "nats.tls: cannot use" in text
            assert all(path in text for path in given.values())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"servers": ()}, "nats.servers is empty"),
        ({"servers": ("http://x",)}, "nats.servers: not of the form"),
        ({"servers": ("nats://",)}, "nats.servers: not of the form"),
        ({"servers": ("nats://x:99999",)}, "nats.servers: not of the form"),
        ({"tls_cert": "x"}, "nats.tls.cert and nats.tls.key must be set together"),
        ({"password": "x"}, "nats.password is set without nats.user"),
        (
            {"user": "u", "token": "t"},
            "more than one authentication method is set: nats.user, nats.token",
        ),
        ({"nkey_seed_file": "a", "credentials_file": "b"}, "more than one authentication method"),
    ],
)
async def test_contradictions_are_refused_before_anything_is_dialled(given, text):
    with pytest.raises(ConfigError, match=text):
        async with linked(NatsOptions(server_id="a", **given)):
            pass


def test_options_do_not_show_secrets():
    shown = repr(
        NatsOptions(
            server_id="a", servers=("nats://u:topsecret@h",), user="u", password="topsecret",
            token="topsecret",
        )
    )  # fmt: skip
    assert "topsecret" not in shown
