"""Recorded traces of a real API server, played again; and each kind of difference is noticed."""

import gzip
from pathlib import Path

import pytest

from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    FencedError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import CONFIG_MAPS, SECRETS
from liftbridge_operator.kube.port import Listing, Preconditions
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.kube.replay import replay
from liftbridge_testkit.kube.trace import Line, Recorder, error_of, lines_of, text_of
from liftbridge_testkit.operator_sim.api import Api
from liftbridge_testkit.operator_sim.replayed import replay_values
from liftbridge_testkit.operator_sim.traced import NAMESPACE, config

TRACES = Path(__file__).parent / "traces"
NAMES = ("adoption", "applies", "deeds", "deletions", "owners", "writes")


def kept(name):
    path = next(TRACES.glob(f"{name}.jsonl*"))
    data = path.read_bytes()
    return lines_of((gzip.decompress(data) if path.suffix == ".gz" else data).decode())


@pytest.mark.parametrize("name", NAMES)
async def test_models_answer_as_the_server_did(name):
    lines = kept(name)
    assert len(lines) > 10
    assert str(await replay(lines) or "") == ""
    assert str(await replay_values(lines, name) or "") == ""


# -- the model in memory, broken ------------------------------------------------------------------


class Broken:
    """The model with other questions or other answers.

    `loosen(verb, asked)` changes arguments, `spoil(number, found)` the object that is answered.
    """

    def __init__(self, kube, loosen=None, spoil=None):
        self._kube, self._loosen, self._spoil = kube, loosen, spoil
        self._count = 0

    def __getattr__(self, verb):
        async def call(**asked):
            self._count += 1
            if self._loosen is not None:
                self._loosen(verb, asked)
            found = await getattr(self._kube, verb)(**asked)
            if self._spoil is not None and isinstance(found, dict):
                self._spoil(self._count, found)
            return found

        return call


def unconditional(_verb, asked):
    if "preconditions" in asked and asked["preconditions"].resource_version:
        asked["preconditions"] = Preconditions(asked["preconditions"].uid)


def of_any_uid(_verb, asked):
    asked.get("body", {}).get("metadata", {}).pop("uid", None)


def forced(verb, asked):
    if verb == "apply":
        asked["force"] = True


def by_another(verb, asked):
    if verb == "apply":
        asked["manager"] = "another"


def unselected(verb, asked):
    if verb == "list_all":
        asked["selector"] = ""


def without_finalizers(verb, asked):
    if verb == "create":
        asked["body"]["metadata"].pop("finalizers", None)


def at(*places):
    """Spoil what lies at a place: the last of `places` is its new value, or None for nothing."""
    *path, last, value = places

    def spoil(_number, found):
        for part in path:
            found = found.get(part, {})
        if value is None:
            found.pop(last, None)
        elif last in found:
            found[last] = value

    return spoil


def always_new(number, found):
    found["metadata"]["resourceVersion"] = str(1_000 + number)


def other_uid(number, found):
    found["metadata"]["uid"] = f"uid-{number}"


def unowned(_number, found):
    entries = found["metadata"]["managedFields"]
    found["metadata"]["managedFields"] = [
        one | {"fieldsV1": {"f:data": {}}} if one["operation"] == "Apply" else one
        for one in entries
    ]


def left_over(_number, found):
    found.setdefault("data", {})["a"] = "1"


LOOSENED = [
    ("writes", unconditional, "outcome"),
    ("applies", of_any_uid, "outcome"),
    ("applies", forced, "outcome"),
    ("applies", by_another, "owners"),
    ("adoption", unselected, "names of the list"),
    ("deletions", without_finalizers, "metadata.finalizers"),
]
SPOILED = [
    ("applies", at("data", "a", "x"), "data.a"),
    ("applies", at("data", None), "data"),
    ("writes", left_over, "data.a"),
    ("applies", always_new, "metadata.resourceVersion"),
    ("writes", at("metadata", "resourceVersion", "1"), "metadata.resourceVersion"),
    ("applies", other_uid, "metadata.uid"),
    ("writes", at("metadata", "uid", "uid-1"), "metadata.uid"),
    ("deletions", at("metadata", "generation", 1), "metadata.generation"),
    ("deletions", at("metadata", "deletionTimestamp", None), "metadata.deletionTimestamp"),
    ("deletions", at("status", "observedGeneration", 9), "status.observedGeneration"),
    ("owners", at("status", "partitionDetails", []), "status.partitionDetails"),
    ("deeds", at("spec", "template", {}), "spec.template"),
    ("applies", at("metadata", "managedFields", []), "owners"),
    ("applies", unowned, "fields that only one side has of"),
]


@pytest.mark.parametrize(("name", "loosen", "what"), LOOSENED)
async def test_model_that_lets_more_through_is_noticed(name, loosen, what):
    found = await replay(kept(name), lambda kube: Broken(kube, loosen=loosen))
    assert found.what == what


@pytest.mark.parametrize(("name", "spoil", "what"), SPOILED)
async def test_model_with_other_objects_is_noticed(name, spoil, what):
    found = await replay(kept(name), lambda kube: Broken(kube, spoil=spoil))
    assert found.what.startswith(what)


def test_refusals_are_told_apart():
    line = next(one for one in kept("writes") if one.error)
    assert set(line.error) == {"class", "status", "reason"}
    held = next(one for one in kept("applies") if "fields" in one.error)
    assert held.error["fields"] == [["kubectl", ".data.c"]]


# -- the model of the schedules, broken -----------------------------------------------------------


class WritesAlways(Api):
    def put_budget(self, max_unavailable):
        self.next_version()
        super().put_budget(max_unavailable)

    def _changed(self, found, changes):
        made = super()._changed(found, changes)
        if made is found:
            return super()._changed(found, {"resource_version": self.next_version()})
        return made


class ComparesNothing(Api):
    def patch_pod(self, name, uid, version, **changes):
        del uid, version
        seen = self.pods[name]
        super().patch_pod(name, seen.uid, seen.resource_version, **changes)


class Shrinks(Api):
    def patch_claim(self, name, uid, version, **changes):
        self.claims[name] = self._changed(self.claim(name, uid, version), changes)


class ForgetsAtOnce(Api):
    def delete_set(self, uid, version):
        super().delete_set(uid, version)
        self.brokers = None


class WaitsForNobody(Api):
    def delete_pod(self, name, uid, version, *, is_forced):
        del is_forced
        self.patch_pod(name, uid, version, is_terminating=True)


class MakesTwo(Api):
    def create_set(self, **values):
        self.brokers = None
        super().create_set(**values)


BROKEN = [
    (WritesAlways, "another version"),
    (ComparesNothing, "outcome"),
    (Shrinks, "outcome"),
    (ForgetsAtOnce, "value"),
    (WaitsForNobody, "value"),
    (MakesTwo, "outcome"),
]


@pytest.mark.parametrize(("api", "what"), BROKEN)
async def test_model_of_the_schedules_that_is_broken_is_noticed(api, what):
    found = await replay_values(kept("deeds"), "deeds", api())
    assert found.what == what


# -- the recorder ---------------------------------------------------------------------------------


async def recorded(*acts, kube=None, **bounds):
    recorder = Recorder(**bounds)
    port = recorder.of(kube or MemoryKube())
    for act in acts:
        await act(port)
    return recorder.lines()


async def test_trace_is_the_same_after_it_was_written_down():
    lines = await recorded(
        lambda kube: kube.create(config("a", x="1")),
        lambda kube: kube.list_all(CONFIG_MAPS, NAMESPACE, selector="traced=a"),
    )
    assert lines_of(text_of(lines)) == lines
    assert [(one.verb, one.place[2]) for one in lines] == [("create", "a"), ("list_all", "")]
    assert await replay(lines) is None


async def test_what_differs_between_two_runs_is_not_kept():
    kubes = [MemoryKube(), MemoryKube()]
    for number in range(5):  # in the second one other things happened before
        kubes[1].put(config(f"other-{number}"))
    uids = iter(f"{number:08x}-1234-4000-8000-00000000abcd" for number in range(10))

    class Real:
        def __init__(self, kube):
            self._kube = kube

        async def create(self, body):
            found = await self._kube.create(body)
            found["metadata"] |= {"uid": next(uids), "creationTimestamp": f"now {next(uids)}"}
            return found

    first, second = [
        await recorded(lambda port: port.create(config("a")), kube=Real(kube)) for kube in kubes
    ]
    assert first == second


async def test_secrets_are_not_kept():
    secret = {"apiVersion": "v1", "kind": "Secret"}
    secret |= {"metadata": {"name": "s", "namespace": NAMESPACE}, "data": {"k": "aHVzaA=="}}
    meant = Preconditions("uid-1")
    operations = [{"op": "add", "path": "/data/l", "value": "aHVzaA=="}]
    place = (SECRETS, NAMESPACE, "s")
    lines = await recorded(
        lambda port: port.apply(secret),
        lambda port: port.patch(*place, {"data": {"m": "aHVzaA=="}}, preconditions=meant),
        lambda port: port.patch(*place, operations, preconditions=meant),
        lambda port: port.get(*place),
        lambda port: port.list_all(SECRETS, NAMESPACE),
    )
    assert len(lines) == 5
    assert "aHVz" not in text_of(lines)
    assert len(set(lines[-2].answer["object"]["data"].values())) == 1  # still known to be the same
    assert await replay(lines) is None


class Answers:
    """A port that answers one thing after the other."""

    def __init__(self, *answers):
        self._answers = iter(answers)

    async def create(self, body):
        del body
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def list_all(self, kind, namespace, *, selector=""):
        del kind, namespace, selector
        return Listing((), "1")


async def test_trace_ends_where_nobody_knows_what_was_done():
    recorder = Recorder()
    port = recorder.of(Answers(FencedError("no"), ConflictError("c"), UnavailableError("?"), {}))
    for error in (FencedError, ConflictError, UnavailableError):
        with pytest.raises(error):
            await port.create(config("a"))
    await port.create(config("a"))
    await port.list_all(CONFIG_MAPS, NAMESPACE)
    assert [one.error["class"] for one in recorder.lines()] == ["ConflictError"]


async def test_trace_is_bounded():
    acts = [lambda kube: kube.list_all(CONFIG_MAPS, NAMESPACE)] * 5
    lines = await recorded(*acts, lines_max=2)
    assert len(lines) == 2


async def test_difference_shows_both_sides():
    refused = {"class": "AlreadyExistsError", "status": 409, "reason": "AlreadyExists"}
    line = Line("o", "create", {"body": config("a")}, {"error": refused})
    found = await replay([line])
    assert (found.number, found.what, found.model) == (1, "outcome", "success")
    assert "AlreadyExists" in str(found)
    assert error_of(AlreadyExistsError("x", status=409, reason="AlreadyExists")) == refused
