"""The support bundle: complete, bounded, without secrets, and whole or not there."""

import asyncio
import json
import stat
import tarfile

import pytest

from liftbridge_operator.kube.errors import UnavailableError
from liftbridge_operator.kube.kinds import CONFIG_MAPS, EVENTS, NODES, PODS, SECRETS
from liftbridge_operator.plugin import bundle
from liftbridge_operator.plugin.archive import PARTIAL, Archive
from liftbridge_operator.plugin.redaction import REDACTED, Redactor
from liftbridge_testkit.kube.person import PersonKube, cluster, plan, stream

NOW = 1_800_000_000_000
LABELS = {"liftbridge.io/cluster": "orders"}


def named(kind, name, namespace="shop", **parts):
    metadata = {"name": name, "namespace": namespace, "labels": LABELS}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **parts}


def pod(number, *, restarts=0):
    env = [
        {"name": "LIFTBRIDGE_HOST", "value": "here"},
        {"name": "MY_VALUE", "value": "hidden-in-a-variable"},
        {"name": "LIFTBRIDGE_NATS_PASSWORD", "value": "hidden-by-its-name"},
        {"name": "USER", "valueFrom": {"secretKeyRef": {"name": "nats", "key": "user"}}},
    ]
    spec = {"nodeName": f"node-{number}", "containers": [{"name": "broker", "env": env}]}
    status = {
        "containerStatuses": [
            {"name": "broker", "restartCount": restarts, "image": "broker:1", "imageID": "sha"}
        ]
    }
    return named("Pod", f"orders-{number}", spec=spec, status=status)


def operator_pod():
    made = named("Pod", "liftbridge-operator-x", "liftbridge-system")
    made["metadata"]["labels"] = {"app.kubernetes.io/name": "liftbridge-operator"}
    made["status"] = {"containerStatuses": [{"name": "operator", "image": "operator:1"}]}
    return made


def event(name, about):
    made = named("Event", name)
    made["apiVersion"] = "events.k8s.io/v1"
    return {**made, "regarding": {"name": about}, "note": f"of {about}"}


def shop():
    """A cluster with everything around it."""
    kube = PersonKube()
    resource = cluster(plan=plan())
    resource["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": '{"any":"hidden-applied"}'
    }
    resource["spec"]["podTemplate"] = {"env": [{"name": "ANY", "value": "hidden-in-the-spec"}]}
    kube.put(resource)
    kube.put(stream("created"))
    kube.put(stream("theirs", "billing"))
    config = 'nats:\n  servers: ["nats://joe:hidden-in-url@nats:4222"]\n  password: hidden-plain\n'
    kube.put(named("ConfigMap", "orders-config-1", data={"broker.yaml": config}))
    template = json.dumps({"env": [{"name": "X", "value": "hidden-in-json"}], "kept": "visible"})
    kube.put(named("ConfigMap", "orders-revision-1", data={"template.json": template}))
    kube.put(named("ConfigMap", "orders-restart", data={"token": "aGlkZGVuLXRva2Vu"}))
    kube.put(named("Secret", "orders-internal", data={"tls.key": "hidden-secret"}))
    set_ = named("StatefulSet", "orders", spec={"replicas": 3})
    kube.put({**set_, "apiVersion": "apps/v1"})
    for number in range(3):
        kube.put(pod(number, restarts=int(number == 1)))
        node = {"name": f"node-{number}", "labels": {}}
        kube.put({"apiVersion": "v1", "kind": "Node", "metadata": node})
        kube.logs[f"orders-{number}", "broker", False] = b"up\ntoken=hidden-in-a-log\n"
    kube.logs["orders-1", "broker", True] = b"went down\n"
    kube.put(operator_pod())
    kube.logs["liftbridge-operator-x", "operator", False] = b"decided\n"
    lease = named("Lease", "liftbridge-operator", "liftbridge-system")
    kube.put({**lease, "apiVersion": "coordination.k8s.io/v1"})
    for name, about in (
        ("e1", "orders"),
        ("e2", "orders-1"),
        ("e3", "liftbridge-data-orders-1"),
        ("e4", "created"),
        ("e5", "somebody"),
    ):
        kube.put(event(name, about))
    return kube


class Made:
    """A bundle that was written."""

    def __init__(self, path, size, manifest, told):
        self.path, self.size, self.manifest, self.told = path, size, manifest, told
        with tarfile.open(path) as tar:
            self.files = {
                member.name.split("/", 1)[1]: tar.extractfile(member).read().decode()
                for member in tar.getmembers()
            }

    def json(self, name):
        return json.loads(self.files[name])


async def bundled(kube, tmp_path, *, operator_namespace="", **bounds):
    told = []
    resource = await kube.get(bundle.lookup.CLUSTERS, "shop", "orders")
    path, size, manifest = await bundle.write_bundle(
        kube,
        resource,
        path=tmp_path / "b.tar.gz",
        bounds=bundle.Bounds(**bounds),
        operator_namespace=operator_namespace,
        now_ms=NOW,
        report=told.append,
    )
    return Made(path, size, manifest, told)


async def test_bundle_has_everything_that_tells_what_happened(tmp_path):
    made = await bundled(shop(), tmp_path)
    assert set(made.files) == {
        "cluster.json",
        "status.txt",
        "plan.txt",
        "streams.json",
        "stateful-set.json",
        "pods.json",
        "claims.json",
        "config-maps.json",
        "services.json",
        "disruption-budgets.json",
        "network-policies.json",
        "events.json",
        "nodes.json",
        "operator/pods.json",
        "operator/leases-liftbridge-system.json",
        "versions.json",
        "logs/shop/orders-0/broker.log",
        "logs/shop/orders-1/broker.log",
        "logs/shop/orders-1/broker.former.log",
        "logs/shop/orders-2/broker.log",
        "logs/liftbridge-system/liftbridge-operator-x/operator.log",
        "manifest.json",
    }
    assert [one["metadata"]["name"] for one in made.json("streams.json")] == ["created"]
    assert [one["metadata"]["name"] for one in made.json("events.json")] == ["e1", "e2", "e3", "e4"]
    assert len(made.json("nodes.json")) == 3
    versions = made.json("versions.json")
    assert versions["apiServer"] == {"gitVersion": "v1.36.0"}
    assert versions["images"]["shop/orders-0"]["broker"]["image"] == "broker:1"
    assert "plan abc123" in made.files["plan.txt"]


async def test_manifest_says_what_is_in_it(tmp_path):
    made = await bundled(shop(), tmp_path)
    assert made.json("manifest.json") == made.manifest
    listed = {one["path"]: one["bytes"] for one in made.manifest["entries"]}
    texts = {name: len(text.encode()) for name, text in made.files.items()}
    assert listed == {name: size for name, size in texts.items() if name != "manifest.json"}
    assert made.manifest["refused"] == []
    assert made.manifest["leftOut"] == []
    assert made.manifest["redacted"] > 0
    assert made.size == made.path.stat().st_size


async def test_file_is_its_owners_alone_and_appears_whole(tmp_path):
    made = await bundled(shop(), tmp_path)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["b.tar.gz"]


async def test_file_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "b.tar.gz").write_text("mine")
    with pytest.raises(FileExistsError):
        await bundled(shop(), tmp_path)
    assert (tmp_path / "b.tar.gz").read_text() == "mine"


async def test_bundle_that_is_interrupted_leaves_nothing(tmp_path):
    kube = shop()

    class KilledError(Exception):
        pass

    kube.fail(KilledError(), "list", PODS)
    with pytest.raises(KilledError):
        await bundled(kube, tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- what is not in it ------------------------------------------------------------------------


async def test_secrets_are_neither_read_nor_in_it(tmp_path):
    kube = shop()
    kube.forbidden.add(SECRETS)
    made = await bundled(kube, tmp_path)
    assert made.manifest["refused"] == []
    hidden = [name for name, text in made.files.items() if "hidden" in text]
    assert hidden == []
    assert "aGlkZGVu" not in made.files["config-maps.json"]
    assert '"kept\\": \\"visible\\"' in made.files["config-maps.json"]
    assert made.files["logs/shop/orders-0/broker.log"] == f"up\ntoken={REDACTED}\n"
    pods = made.json("pods.json")
    assert {one["name"]: one.get("value") for one in pods[0]["spec"]["containers"][0]["env"]} == {
        "LIFTBRIDGE_HOST": "here",
        "MY_VALUE": REDACTED,
        "LIFTBRIDGE_NATS_PASSWORD": REDACTED,
        "USER": None,
    }


async def test_what_is_refused_is_noted_and_everything_else_is_there(tmp_path):
    kube = shop()
    kube.forbidden |= {NODES, EVENTS, CONFIG_MAPS, "log", "version"}
    made = await bundled(kube, tmp_path)
    refused = {one["what"]: one["why"] for one in made.manifest["refused"]}
    assert refused["events"] == refused["config-maps"] == "you are not allowed to read it"
    assert (
        refused["node node-0"]
        == refused["version of the API server"]
        == "you are not allowed to read it"
    )
    assert refused["logs/shop/orders-0/broker.log"] == "you are not allowed to read it"
    assert {"events.json", "config-maps.json", "nodes.json"}.isdisjoint(made.files)
    assert {"pods.json", "cluster.json", "versions.json"} <= set(made.files)
    assert "events: you are not allowed to read it" in made.told


async def test_person_with_few_rights_gets_a_bundle(tmp_path):
    kube = shop()
    kube.forbidden |= {PODS, NODES, EVENTS, CONFIG_MAPS}
    made = await bundled(kube, tmp_path)
    assert made.json("versions.json")["images"] == {}
    assert any("--operator-namespace" in one["what"] for one in made.manifest["refused"])


async def test_operator_is_looked_for_where_it_is_said_to_run(tmp_path):
    made = await bundled(shop(), tmp_path, operator_namespace="elsewhere")
    assert made.json("operator/pods.json") == []
    made.path.unlink()
    made = await bundled(shop(), tmp_path, operator_namespace="liftbridge-system")
    assert len(made.json("operator/pods.json")) == 1


async def test_api_server_that_fails_once_costs_one_thing(tmp_path):
    kube = shop()
    kube.fail(UnavailableError("GET /x: password=hidden"), "list", EVENTS)
    made = await bundled(kube, tmp_path)
    assert made.manifest["refused"] == [
        {"what": "events", "why": f"GET /x: password={REDACTED}"},
    ]


# -- bounds -----------------------------------------------------------------------------------


async def test_of_a_long_log_the_end_is_kept_in_whole_lines(tmp_path):
    kube = shop()
    kube.logs["orders-0", "broker", False] = b"".join(b"line %04d\n" % one for one in range(1_000))
    made = await bundled(kube, tmp_path, log_bytes=105)
    assert made.files["logs/shop/orders-0/broker.log"].splitlines() == [
        f"line {one:04}" for one in range(990, 1_000)
    ]
    cut = [one["path"] for one in made.manifest["entries"] if one["isCut"]]
    assert cut == ["logs/shop/orders-0/broker.log"]
    made.path.unlink()
    made = await bundled(kube, tmp_path, log_lines=2)
    assert made.files["logs/shop/orders-0/broker.log"] == "line 0998\nline 0999\n"


async def test_without_lines_there_are_no_logs(tmp_path):
    made = await bundled(shop(), tmp_path, log_lines=0)
    assert not any(name.startswith("logs/") for name in made.files)


async def test_what_has_no_room_is_noted(tmp_path):
    kube = shop()
    whole = await bundled(kube, tmp_path)
    whole.path.unlink()
    logs = sum(one["bytes"] for one in whole.manifest["entries"] if "logs/" in one["path"])
    rest = sum(one["bytes"] for one in whole.manifest["entries"]) - logs
    made = await bundled(kube, tmp_path, size_bytes=rest)
    assert {one["what"] for one in made.manifest["leftOut"]} == {
        name for name in whole.files if name.startswith("logs/")
    }
    assert sum(one["bytes"] for one in made.manifest["entries"]) == rest


async def test_bundle_ends_in_time_with_what_it_has(tmp_path):
    kube = shop()

    async def never(*_args, **_options):
        await asyncio.Event().wait()

    kube.log = never
    made = await bundled(kube, tmp_path, seconds=0.05)
    assert made.manifest["leftOut"][-1] == {
        "what": "the rest",
        "why": "it took longer than 0.05 s",
    }
    assert "pods.json" in made.files


async def test_more_objects_than_the_bound_are_counted(tmp_path):
    made = await bundled(shop(), tmp_path, objects=2, events=3)
    assert len(made.json("pods.json")) == 2
    assert {"what": "pods", "why": "1 of 3"} in made.manifest["leftOut"]
    assert [one["metadata"]["name"] for one in made.json("events.json")] == ["e2", "e3", "e4"]


def test_archive_says_when_it_is_full(tmp_path):
    archive = Archive(tmp_path / "a", root="r", bytes_max=3, made_s=0)
    assert archive.add("one", b"abc")
    assert not archive.add("two", b"d")
    archive.discard()
    assert not (tmp_path / f"a{PARTIAL}").exists()


# -- redaction --------------------------------------------------------------------------------

SEED = "SU" + "A" * 56
SECRET_TEXTS = [
    "-----BEGIN EC PRIVATE KEY-----\nhidden\n-----END EC PRIVATE KEY-----",
    "-----BEGIN NATS USER JWT-----\nhidden\n------END NATS USER JWT------",
    "-----BEGIN USER NKEY SEED-----\nhidden",
    "nats://hidden@nats:4222",
    "nats://joe:hidden@nats:4222",
    "Authorization: Bearer hidden-hidden",
    "bearer hidden-hidden",
    "password=hidden",
    'nats.password: "hidden words"',
    "{'apiKey': 'hidden'}",
    '{"client_secret":"hid\\"den"}',
    "user=joe&access_token=hidden&x=1",
    "PRIVATE_KEY = hidden",
]
OPEN_TEXTS = [
    "secret orders-tls is not there",
    "the token expired",
    "https://nats:4222/path",
    "passwords are read from files",
    "offset=3 partition=s/0",
    "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
]


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_secret_is_taken_out_of_a_text(text):
    redactor = Redactor()
    made = redactor.text(f"before {text} after")
    assert "hid" not in made
    assert made.startswith("before ")
    assert redactor.count >= 1
    assert Redactor().text(made) == made  # it is found once


@pytest.mark.parametrize("secret", [SEED, "eyJhbGciOiJ.eyJzdWIiOiJ.c2lnbmF0dXJl"])
def test_secret_of_a_known_form_is_found_anywhere(secret):
    assert Redactor().text(f"a ({secret}) b") == f"a ({REDACTED}) b"


@pytest.mark.parametrize("text", OPEN_TEXTS)
def test_text_about_secrets_stays(text):
    redactor = Redactor()
    assert redactor.text(text) == text
    assert redactor.count == 0


def test_values_of_objects_are_judged_by_their_keys():
    redactor = Redactor()
    made = redactor.value(
        {
            "token": "x",
            "apiKey": 7,
            "secretName": "orders-tls",
            "secretRef": {"name": "n", "key": "password"},
            "automountServiceAccountToken": False,
            "imagePullSecrets": [{"name": "registry"}],
            "managedFields": [{"manager": "kubectl"}],
            "list": [{"credentials": "x"}],
            "json": '{"passphrase": "x", "kept": 1}',
            "broken": "{not json",
        }
    )
    assert made == {
        "token": REDACTED,
        "apiKey": REDACTED,
        "secretName": "orders-tls",
        "secretRef": {"name": "n", "key": "password"},
        "automountServiceAccountToken": False,
        "imagePullSecrets": [{"name": "registry"}],
        "list": [{"credentials": REDACTED}],
        "json": json.dumps({"kept": 1, "passphrase": REDACTED}, sort_keys=True),
        "broken": "{not json",
    }
    assert redactor.count == 4
