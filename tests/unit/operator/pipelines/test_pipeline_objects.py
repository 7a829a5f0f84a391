"""Pipelines of every kind, and all objects that are made of them, line by line.

A change of a golden file is a change of what users get: read it before you keep it.
"""

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.render import render
from liftbridge_operator.pipelines.resources import UnreadableError, pipeline_of
from liftbridge_operator.pipelines.subject import Means, UnreachableError, reach_of
from liftbridge_testkit.pipelines_memory import CLUSTER, pipeline

FOLDER = Path(__file__).parent
PATHS = sorted((FOLDER / "specs").glob("*.yaml"))
MEANS = Means("liftbridge-spark:0.1.0", "liftbridge-executors")
TLS_LISTENER = {"name": "internal", "tls": True}
CLUSTERS = {
    "orders": CLUSTER,
    "generated": CLUSTER | {"tls": {"mode": "Generated"}, "listeners": [TLS_LISTENER]},
    "secured": CLUSTER
    | {
        "tls": {"mode": "Generated", "clientAuth": "Required"},
        "listeners": [{"name": "clients", "port": 9300, "tls": True}],
    },
}


def of_spec(spec, name="nightly"):
    body = pipeline(name)
    body["spec"] = spec
    body["metadata"] |= {"uid": "uid-1", "generation": 1}
    return pipeline_of(body)


def rendered(spec, means=MEANS, **clusters):
    subject = of_spec(spec)
    cluster = ClusterSpec.model_validate((CLUSTERS | clusters)[spec["clusterRef"]["name"]])
    return render(subject, reach_of(subject, cluster), means)


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def by_name(stem):
    return load(FOLDER / "specs" / f"{stem}.yaml")


def template_of(workload):
    spec = workload["spec"].get("jobTemplate", workload)["spec"]
    return spec["template"]


class _Plain(yaml.SafeDumper):
    """Texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, _data):
        return True


_Plain.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_objects_of_a_pipeline_are_the_golden_ones(path, rewrite):
    golden = FOLDER / "golden" / path.name
    text = yaml.dump_all(rendered(load(path)), Dumper=_Plain, sort_keys=False, width=200)
    if rewrite:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_everything_says_whose_it_is_and_goes_with_it(path):
    for one in rendered(load(path)):
        metadata = one["metadata"]
        assert metadata["labels"]["liftbridge.io/pipeline"] == "nightly"
        assert "liftbridge.io/cluster" not in metadata["labels"]  # it would pass for a part of one
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == (
            "StreamPipeline",
            "uid-1",
            True,
        )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_pods_satisfy_the_restricted_profile(path):
    *_, workload = rendered(load(path))
    spec = template_of(workload)["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_only_a_driver_with_executors_has_rights(path):
    spec = load(path)
    *beside, workload = rendered(spec)
    has_executors = spec.get("runtime") == "Executors"
    assert template_of(workload)["spec"]["automountServiceAccountToken"] == has_executors
    assert ("RoleBinding" in {one["kind"] for one in beside}) == has_executors


def test_executors_have_no_token_and_are_found_by_no_selector_of_the_driver():
    config = next(one for one in rendered(by_name("executors")) if one["kind"] == "ConfigMap")
    pod = json.loads(config["data"][names.EXECUTOR_KEY])
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert names.PIPELINE not in pod["metadata"]["labels"]
    assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


def test_spark_knows_the_folder_for_its_own_files_as_a_volume_that_is_mounted():
    """Without one it would mount another in the same place (Spark's `LocalDirsFeatureStep`)."""
    *beside, workload = rendered(by_name("executors"))
    config = next(one for one in beside if one["kind"] == "ConfigMap")
    driver = template_of(workload)["spec"]["containers"][0]
    executor = json.loads(config["data"][names.EXECUTOR_KEY])["spec"]["containers"][0]
    (folder,) = [one["value"] for one in driver["env"] if one["name"] == "SPARK_LOCAL_DIRS"]
    for container in (driver, executor):
        (found,) = [one for one in container["volumeMounts"] if one["mountPath"] == folder]
        assert found["name"].startswith("spark-local-dir-")


def test_executors_go_to_the_name_of_the_driver_and_not_to_what_it_is_bound_to():
    """By default Spark 4.3 tells them `spark.driver.bindAddress` (SPARK-58748)."""
    config = next(one for one in rendered(by_name("executors")) if one["kind"] == "ConfigMap")
    conf = dict(line.split(" ", 1) for line in config["data"][names.CONF_KEY].splitlines())
    assert conf["spark.kubernetes.executor.useDriverPodIP"] == "false"
    service = next(one for one in rendered(by_name("executors")) if one["kind"] == "Service")
    assert conf["spark.driver.host"].startswith(f"{service['metadata']['name']}.")


def test_profile_names_the_files_that_are_mounted():
    *beside, workload = rendered(by_name("executors"))
    config = next(one for one in beside if one["kind"] == "ConfigMap")
    profile = tomllib.loads(config["data"][names.PROFILES_KEY])["profiles"]["cluster"]
    volume = next(
        one for one in template_of(workload)["spec"]["volumes"] if one["name"] == names.TLS_VOLUME
    )
    files = [f"{names.TLS_DIRECTORY}/{one['path']}" for one in volume["secret"]["items"]]
    assert [profile["ca"], profile["cert"], profile["key"]] == files
    assert profile["servers"] == "secured-clients.brokers.svc:9300"


def test_another_specification_is_another_run_and_suspending_is_none():
    spec = by_name("replay")
    name = rendered(spec)[-1]["metadata"]["name"]
    assert rendered(spec | {"suspend": False})[-1]["metadata"]["name"] == name
    assert rendered(spec | {"sink": {"stream": "x"}})[-1]["metadata"]["name"] != name


def test_another_operator_runs_nothing_again():
    spec = by_name("replay")
    newer = Means("liftbridge-spark:0.2.0", "")
    names_ = {rendered(spec, means)[-1]["metadata"]["name"] for means in (MEANS, newer)}
    assert len(names_) == 1


def test_pods_follow_a_change_of_their_settings():
    spec = by_name("archive")
    revisions = {
        template_of(rendered(spec | changes)[-1])["metadata"]["annotations"][names.REVISION]
        for changes in ({}, {"sparkConf": {"spark.task.maxFailures": "8"}}, {"suspend": True})
    }
    assert len(revisions) == 2


@pytest.mark.parametrize(
    ("mode", "kind", "name"),
    [
        ({"mode": "CertManager", "issuerRef": {"name": "i"}}, "secret", "orders-tls"),
        ({"mode": "Secret", "secretName": "given"}, "secret", "given"),
        ({"mode": "Generated"}, "configMap", "orders-ca"),
    ],
)
def test_authority_of_the_cluster_is_mounted_without_its_key(mode, kind, name):
    cluster = CLUSTER | {"tls": mode, "listeners": [TLS_LISTENER]}
    *_, workload = rendered(by_name("archive"), orders=cluster)
    volume = next(
        one for one in template_of(workload)["spec"]["volumes"] if one["name"] == names.TLS_VOLUME
    )
    assert volume[kind].get("name", volume[kind].get("secretName")) == name
    assert [one["key"] for one in volume[kind]["items"]] == ["ca.crt"]


@pytest.mark.parametrize(
    ("changes", "cluster", "why"),
    [
        ({}, {"listeners": [{"name": "out", "type": "NodePort"}]}, "no listener of type Internal"),
        (
            {},
            {
                "tls": {"mode": "Generated", "clientAuth": "Required"},
                "listeners": [TLS_LISTENER],
            },
            "requires a certificate",
        ),
        (
            {"clusterRef": {"name": "orders", "namespace": "else"}},
            {"tls": {"mode": "Generated"}, "listeners": [TLS_LISTENER]},
            "is in another namespace",
        ),
    ],
)
def test_what_pods_could_not_reach_is_refused_with_what_is_missing(changes, cluster, why):
    with pytest.raises(UnreachableError, match=why):
        rendered(by_name("archive") | changes, orders=CLUSTER | cluster)


def test_executors_need_a_role():
    with pytest.raises(UnreachableError, match="executor-role"):
        rendered(by_name("executors"), Means("image", ""))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"later": 1}, "only a newer operator knows spec.later"),
        ({"type": "Copy"}, "cannot be read"),
        ({"mode": "Scheduled"}, "breaks the rules"),
        ({"type": "Replay"}, "breaks the rules"),
        ({"archive": None}, "breaks the rules"),
        ({"source": {}}, "breaks the rules"),
    ],
)
def test_what_cannot_be_carried_out_is_not_read(changes, why):
    spec = {name: one for name, one in (by_name("archive") | changes).items() if one is not None}
    with pytest.raises(UnreadableError, match=why):
        of_spec(spec)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "Metrics", "mode": "Once", "archive": None}, ["spark", "metrics", "s"]),
        ({"type": "Audit", "mode": "Once", "archive": None}, ["spark", "audit", "s"]),
        (
            {"type": "Audit", "mode": "Once"},
            ["spark", "audit", "s", "--archive", "s3://bucket/archive"],
        ),
        (
            {"type": "Compact", "mode": "Once"},
            ["spark", "compact", "s", "s3://bucket/archive", "--small-files"],
        ),
        (
            {"type": "Replay", "mode": "Once", "sink": {"stream": "t", "preserveOffsets": False}},
            ["spark", "replay", "s", "s3://bucket/archive", "--to-stream", "t"],
        ),
    ],
)
def test_commands_of_all_types(changes, words):
    spec = by_name("archive") | {"source": {"streams": ["s"]}} | changes
    spec = {name: one for name, one in spec.items() if one is not None}
    *_, workload = rendered(spec)
    arguments = template_of(workload)["spec"]["containers"][0]["args"]
    assert arguments == [*words, "--master", "local[2]", "--output", "jsonl"]


@pytest.mark.parametrize(
    ("limits", "tasks"), [({}, 2), ({"cpu": "500m"}, 1), ({"cpu": 4}, 4), ({"cpu": "2500m"}, 2)]
)
def test_tasks_are_as_many_as_whole_cores(limits, tasks):
    *_, workload = rendered(by_name("archive") | {"resources": {"limits": limits}})
    assert f"local[{tasks}]" in template_of(workload)["spec"]["containers"][0]["args"]
