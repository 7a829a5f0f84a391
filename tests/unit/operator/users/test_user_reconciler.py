"""The user reconciler between an API server and brokers in memory."""

import tomllib

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from liftbridge_operator.kube.errors import ForbiddenError
from liftbridge_operator.kube.kinds import CLUSTERS, SECRETS, USERS
from liftbridge_operator.model import names
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.user import Effect, Operation, UserStatus
from liftbridge_operator.users.decide import OVERLAP_SECONDS, REFUSED_SECONDS
from liftbridge_operator.users.marks import FINALIZER
from liftbridge_operator.users.observation import Limits
from liftbridge_testkit.users_memory import rule
from liftbridge_testkit.users_world import UserWorld

LIFETIME_S = 3_600
OVERLAP_S = LIFETIME_S / 3
DUE_S = LIFETIME_S * 2 / 3
PUBLISH = {"resource": "Stream", "name": "orders", "operations": ["Publish"]}
READ = {"resource": "Stream", "name": "orders", "operations": ["Read"]}
CERTIFICATE = {"certificate": {"duration": "1h"}}
ACCOUNT = {"serviceAccount": {"name": "billing"}}
JWT = {
    "issuer": "i",
    "audience": "a",
    "keys": {"configMapKeyRef": {"name": "k", "key": "k"}},
}
TOKEN = {"token": {"lifetime": "1h"}}


@pytest.fixture
def world():
    """A cluster with a CA, whose brokers answer."""
    made = UserWorld()
    made.cluster()
    return made


async def test_user_gets_rules_quota_and_a_secret_with_everything(world):
    world.user(access=[PUBLISH], quotas={"publishBytes": "10M", "streams": 3})
    await world.settle()
    assert await world.reason() == "Reconciled"
    assert await world.reason("Enforced") == "RulesApply"
    assert world.brokers.rules["billing"] == rule("orders", Operation.PUBLISH)
    assert world.brokers.quotas["billing"] == Limits(publish_bytes=10_000_000, streams=3)
    files = await world.files()
    assert sorted(files) == ["address", "ca.crt", "profiles.toml", "token"]
    assert files["address"] == b"c-tls.shop.svc:9393"
    assert files["ca.crt"].startswith(b"-----BEGIN")
    assert tomllib.loads(files["profiles.toml"].decode()) == {
        "current": "liftbridge",
        "profiles": {
            "liftbridge": {
                "servers": "c-tls.shop.svc:9393",
                "tls": True,
                "ca": "ca.crt",
                "token_file": "token",
            }
        },
    }
    assert await world.token() in world.brokers.valid("billing")
    body = await world.body()
    assert body["metadata"]["finalizers"] == [FINALIZER]
    status = UserStatus.model_validate(body["status"])
    assert (status.principal, status.authentication, status.has_quota) == ("billing", "Token", True)
    assert status.token_id == await world.token()
    assert status.renews < status.expires
    secret = await world.kube.get(SECRETS, "shop", "billing")
    assert [one["uid"] for one in secret["metadata"]["ownerReferences"]] == [
        body["metadata"]["uid"]
    ]
    told = [reason for _, reason in world.events.told]
    assert told == [EventReason.ACCESS_CHANGED, EventReason.ACCESS_CHANGED, "CredentialIssued"]


async def test_certificate_is_one_for_clients_only(world):
    world.user(authentication=CERTIFICATE, principal="shop-billing", secretName="other")
    await world.settle()
    assert await world.reason() == "Reconciled"
    pair = await world.pair("other")
    made = x509.load_pem_x509_certificate(pair.cert)
    (name,) = made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "shop-billing"
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    with pytest.raises(x509.ExtensionNotFound):
        made.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    authority = x509.load_pem_x509_certificate((await world.files("c-ca"))["ca.crt"])
    made.verify_directly_issued_by(authority)
    assert world.issuer.fits(pair)
    assert "token" not in await world.files("other")


async def test_service_account_gets_no_credential(world):
    world.user(authentication=ACCOUNT, access=[PUBLISH], quotas={"streams": 1})
    await world.settle()
    principal = "system:serviceaccount:shop:billing"
    assert set(world.brokers.rules) == set(world.brokers.quotas) == {principal}
    assert sorted(await world.files()) == ["address", "ca.crt", "profiles.toml"]
    assert world.brokers.held == {}


async def test_nothing_is_written_while_nothing_changes(world):
    world.user(access=[PUBLISH], quotas={"streams": 3})
    world.user("other", authentication=CERTIFICATE, access=[READ])
    await world.settle()
    writes, calls = len(world.kube.writes), len(world.brokers.calls)
    await world.settle(1_800)
    assert (len(world.kube.writes), len(world.brokers.calls)) == (writes, calls)
    assert set(world.board.reasons.values()) == {"Reconciled"}


async def test_token_is_replaced_with_an_overlap_and_the_former_one_ends(world):
    world.user(authentication=TOKEN)
    await world.settle()
    first = await world.token()
    await world.settle(DUE_S - 120)
    assert await world.token() == first
    await world.settle(180)
    second = await world.token()
    assert second != first
    assert world.brokers.valid("billing") == {first, second}
    await world.settle(OVERLAP_S)
    assert world.brokers.valid("billing") == {second}
    assert await world.reason() == "Reconciled"


async def test_certificate_is_replaced_after_two_thirds_and_with_its_authority(world):
    world.user(authentication=CERTIFICATE)
    await world.settle()
    first = await world.pair()
    await world.settle(DUE_S - 120)
    assert await world.pair() == first
    await world.settle(180)
    second = await world.pair()
    assert second != first
    world.cluster(authority=2)
    await world.settle(120)
    third = await world.pair()
    assert third != second
    assert (await world.files())["ca.crt"] == (await world.files("c-ca"))["ca.crt"]


async def test_shorter_lifetime_does_not_wait_for_the_end_of_a_longer_one(world):
    world.user()
    await world.settle()
    first = await world.token()
    world.change(authentication={"token": {"lifetime": "24h"}})
    await world.settle()
    assert await world.token() != first


async def test_secret_is_made_again_when_it_was_deleted_or_changed(world):
    world.user()
    await world.settle()
    first = await world.token()
    world.kube.remove(SECRETS, "shop", "billing")
    await world.settle(120)
    second = await world.token()
    assert second not in ("", first)
    world.kube.edit(SECRETS, "shop", "billing", lambda body: body["data"].update(address="eA=="))
    await world.settle(120)
    assert (await world.files())["address"] == b"c-tls.shop.svc:9393"
    assert await world.token() == second
    await world.settle(OVERLAP_SECONDS)
    assert world.brokers.valid("billing") == {second}


async def test_rules_follow_the_spec_and_drift_is_put_right(world):
    world.user(access=[PUBLISH], quotas={"streams": 3})
    await world.settle()
    world.change(access=[READ, {**PUBLISH, "effect": "Deny"}], quotas={"streams": 5})
    await world.settle()
    assert world.brokers.rules["billing"] == {
        **rule("orders", Operation.READ),
        **rule("orders", Operation.PUBLISH, effect=Effect.DENY),
    }
    assert world.brokers.quotas["billing"] == Limits(streams=5)
    world.brokers.revoke("billing", rule("orders", Operation.READ))
    await world.settle(120)
    assert rule("orders", Operation.READ).items() <= world.brokers.rules["billing"].items()
    world.brokers.quotas["billing"] = Limits(streams=50)
    await world.settle(120)
    assert world.brokers.quotas["billing"] == Limits(streams=5)
    assert [reason for _, reason in world.events.told[-2:]] == [EventReason.DRIFT_REPAIRED] * 2
    world.change(access=None, quotas=None)
    await world.settle()
    assert world.brokers.rules == {}
    assert world.brokers.quotas == {}
    body = await world.body()
    assert not body["status"].get("granted")
    assert not body["status"]["hasQuota"]


async def test_what_was_granted_by_hand_stays(world):
    world.brokers.grant("billing", rule("orders", Operation.READ))
    world.brokers.grant("billing", rule("events", Operation.READ))
    world.user(access=[{**PUBLISH, "operations": ["Publish", "Read"]}])
    await world.settle()
    (granted,) = (await world.body())["status"]["granted"]
    assert granted["operations"] == ["Publish"]
    await world.delete()
    await world.settle()
    assert world.kube.look(USERS, "shop", "billing") is None
    assert world.brokers.rules["billing"] == {
        **rule("orders", Operation.READ),
        **rule("events", Operation.READ),
    }


async def test_quota_of_somebody_else_is_not_taken_over(world):
    world.brokers.quotas["billing"] = Limits(streams=9)
    world.user()
    await world.settle()
    assert await world.reason() == "Reconciled"
    world.change(quotas={"streams": 3})
    await world.settle()
    reason, message = await world.condition()
    assert reason == "Conflict"
    assert "liftbridge quota remove" in message
    assert world.brokers.quotas["billing"] == Limits(streams=9)


async def test_deletion_takes_everything_away(world):
    world.user(access=[PUBLISH], quotas={"streams": 3})
    await world.settle()
    await world.delete()
    await world.settle()
    assert world.kube.look(USERS, "shop", "billing") is None
    assert (world.brokers.rules, world.brokers.quotas, world.brokers.held) == ({}, {}, {})
    assert world.events.told[-1] == ("billing", EventReason.USER_REMOVED)


async def test_deletion_waits_for_brokers_and_can_be_given_up(world):
    world.user(access=[PUBLISH])
    await world.settle()
    world.brokers.is_silent = True
    await world.settle(120)
    assert await world.reason() == "ClusterUnreachable"
    await world.delete()
    await world.settle(120)
    reason, message = await world.condition("DeletionBlocked")
    assert reason == "ClusterUnreachable"
    uid = (await world.body())["metadata"]["uid"]
    assert f"liftbridge.io/confirm-delete={uid}" in message
    world.confirm("another")
    await world.settle(60)
    assert world.kube.look(USERS, "shop", "billing") is not None
    world.confirm(uid)
    await world.settle(60)
    assert world.kube.look(USERS, "shop", "billing") is None
    assert world.events.told[-1] == ("billing", EventReason.USER_ABANDONED)


async def test_deletion_does_not_wait_for_a_cluster_that_is_gone(world):
    world.user(access=[PUBLISH])
    await world.settle()
    world.kube.remove(CLUSTERS, "shop", "c")
    await world.settle(120)
    assert await world.reason() == "ClusterNotFound"
    await world.delete()
    await world.settle()
    assert world.kube.look(USERS, "shop", "billing") is None


async def test_younger_user_of_a_principal_stands_back(world):
    world.user(access=[PUBLISH])
    world.clock.seconds += 5
    world.user("copy", principal="billing", access=[READ])
    await world.settle()
    reason, message = await world.condition(name="copy")
    assert (reason, "LiftbridgeUser shop/billing" in message) == ("Conflict", True)
    assert world.brokers.rules["billing"] == rule("orders", Operation.PUBLISH)
    assert await world.files("copy") == {}
    world.restart()
    await world.settle()
    assert await world.reason(name="copy") == "Conflict"
    await world.delete()
    await world.settle(60)
    assert await world.reason(name="copy") == "Reconciled"
    assert world.brokers.rules["billing"] == rule("orders", Operation.READ)


async def test_secret_of_somebody_else_is_left_alone(world):
    world.secret("billing", {"password": b"x"})
    world.user(access=[PUBLISH])
    await world.settle()
    reason, message = await world.condition()
    assert (reason, "Secret billing" in message) == ("Conflict", True)
    assert await world.files() == {"password": b"x"}
    assert world.brokers.rules == {}


@pytest.mark.parametrize(
    ("spec", "cluster", "words"),
    [
        ({"listener": "outside"}, {}, "it has: plain, tls"),
        ({"listener": "plain"}, {}, "has no TLS"),
        ({}, {"listeners": [{"name": "plain"}]}, "has no TLS"),
        ({"principal": "c-operator"}, {}, "that of the operator"),
        ({"authentication": CERTIFICATE}, {"tls": {"mode": "Generated"}}, "clientAuth"),
        (
            {"authentication": CERTIFICATE},
            {"access": {"certificateRules": ["O:* => $1"]}},
            "add `DEFAULT`",
        ),
        ({}, {"access": {}}, "`access.tokens: true`"),
        ({}, {"access": None}, "`access.tokens: true`"),
        ({"authentication": ACCOUNT}, {"access": {"tokens": True}}, "`access.jwt`"),
        (
            {"authentication": ACCOUNT},
            {"access": {"jwt": {**JWT, "principalClaim": "email"}}},
            "principalClaim",
        ),
        ({"authentication": CERTIFICATE, "principal": "x" * 65}, {}, "at most 64"),
    ],
)
async def test_spec_that_cannot_be_carried_out_changes_nothing(spec, cluster, words):
    world = UserWorld()
    world.cluster(**cluster)
    world.user(access=[PUBLISH], **spec)
    await world.settle()
    reason, message = await world.condition()
    assert (reason, words in message) == ("InvalidSpec", True)
    assert world.brokers.calls == []
    assert FINALIZER not in (await world.body())["metadata"].get("finalizers", ())


async def test_rule_that_brokers_refuse_is_reported_and_never_claimed(world):
    world.brokers.refusals["check_rules"] = "name is invalid"
    world.user(access=[PUBLISH])
    await world.settle()
    assert await world.condition() == (
        "InvalidSpec",
        "The spec cannot be carried out: access, Publish on Stream orders: name is invalid.",
    )
    assert not (await world.body())["status"].get("granted")
    calls = len(world.brokers.calls)
    await world.settle(REFUSED_SECONDS / 2)
    assert len(world.brokers.calls) == calls
    del world.brokers.refusals["check_rules"]
    await world.settle(REFUSED_SECONDS)
    assert await world.reason() == "Reconciled"


async def test_token_that_no_secret_takes_is_ended_at_once(world):
    def admit(verb, body):
        if body["kind"] == "Secret":
            raise ForbiddenError("secrets is forbidden: exceeded quota", status=403)

    world.kube.admit = admit
    world.user()
    await world.settle(600)
    assert await world.reason() == "Refused"
    assert world.brokers.valid("billing") == set()
    world.kube.admit = None
    await world.settle(120)
    assert await world.reason() == "Reconciled"
    assert world.brokers.valid("billing") == {await world.token()}


async def test_namespace_has_to_be_allowed_and_loses_access_when_it_no_longer_is(world):
    world.user("there", "elsewhere", access=[PUBLISH])
    await world.settle()
    body = await world.body("there", "elsewhere")
    assert body["status"]["conditions"][0]["reason"] == "NotAllowed"
    assert world.brokers.calls == []
    world.cluster(access={"allowedNamespaces": ["elsewhere"], "tokens": True})
    await world.settle(30)
    assert world.brokers.rules["there"] == rule("orders", Operation.PUBLISH)
    world.cluster()
    await world.settle(120)
    assert (world.brokers.rules, world.brokers.held) == ({}, {})


async def test_access_control_that_is_off_is_reported(world):
    world.brokers.is_on = False
    world.user()
    await world.settle()
    assert await world.reason("Enforced") == "AccessOff"


async def test_spec_of_a_newer_operator_is_left_alone_and_can_be_deleted(world):
    world.user(access=[PUBLISH])
    await world.settle()
    world.change(later={"field": 1})
    await world.settle()
    reason, message = await world.condition()
    assert (reason, "spec.later" in message) == ("InvalidSpec", True)
    assert world.brokers.rules["billing"]
    await world.delete()
    await world.settle()
    assert (world.brokers.rules, world.brokers.held) == ({}, {})


async def test_paused_cluster_is_not_changed(world):
    world.cluster(paused=True)
    world.user(access=[PUBLISH])
    await world.settle(60)
    assert await world.reason() == "ClusterNotReady"
    assert world.brokers.calls == []


async def test_secrets_are_not_in_events_or_status(world):
    world.user()
    await world.settle()
    token = (await world.files())["token"].decode()
    told = repr([await world.body(), world.events.told, world.brokers.calls])
    assert token.rpartition("_")[2] not in told
    assert names.KEY_KEY not in told
