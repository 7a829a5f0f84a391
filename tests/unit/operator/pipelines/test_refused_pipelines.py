"""Whatever request of a pass over a pipeline is refused: it is named, and over when it is answered.

Each request of passes that make, repair and change the objects of a pipeline, found by what the
passes ask for, with each status by which an API server refuses.
"""

import json

import pytest

from liftbridge_operator.kube.answers import error_of
from liftbridge_operator.kube.errors import UnansweredError, UnavailableError
from liftbridge_operator.kube.kinds import CLUSTERS, CONFIG_MAPS, PIPELINES, kind_of
from liftbridge_operator.pipelines.apply import KINDS
from liftbridge_testkit.pipelines_memory import PipelineWorld

EXECUTORS = {"runtime": "Executors", "executors": {"instances": 2}}
SCHEDULED = {"mode": "Scheduled", "schedule": {"cron": "@hourly"}}
LIVES = {
    "made": ({}, {}),
    "repaired": (EXECUTORS, EXECUTORS),
    "given executors": ({}, EXECUTORS),
    "taken executors": (EXECUTORS, {}),
    "once": ({}, {"mode": "Once"}),
    "scheduled": ({"mode": "Once"}, SCHEDULED),
    "continuous": (SCHEDULED, {}),
}
"""A specification that is at rest, and the one that comes after it."""

STATUSES = (403, 404, 409, 422, 500)


class RefusingKube:
    """One request is refused as often as it is asked for, and all are written down."""

    def __init__(self, kube):
        self.kube = kube
        self.asked = {}
        self.refused = None
        self.status = 0

    def __getattr__(self, verb):
        call = getattr(self.kube, verb)

        async def asked(*args, **named):
            kind, name = args[0], args[2] if verb != "list_all" else ""
            self.meet((verb, kind, name))
            return await call(*args, **named)

        async def written(body, **named):
            self.meet((verb, kind_of(body), body["metadata"]["name"]))
            return await call(body, **named)

        if not callable(call):
            return call
        return written if verb in ("create", "apply", "apply_status") else asked

    def meet(self, request):
        self.asked[request] = True
        if request == self.refused:
            verb, kind, name = request
            text = json.dumps({"kind": "Status", "message": f"no {kind.plural} {name} today"})
            raise error_of(verb, kind.plural, self.status, text.encode())


class World(PipelineWorld):
    """With requests that are written down."""

    def __init__(self):
        super().__init__()
        self.refusing = RefusingKube(self.kube)

    async def until_told(self):
        """Passes; one that gets no answer may end once before that is told."""
        for attempt in range(3):
            self.clock.seconds += 30
            try:
                await self.look()
            except UnavailableError:
                assert attempt == 0

    def change(self, spec):
        """A person changes the specification, and every object."""
        self.put(**spec)
        for kind in KINDS:
            for name in self.kube.names_of(kind):
                self.kube.edit(kind, "shop", name, perturb)

    def contents(self):
        """All objects, without what tells their history."""
        return {
            (kind, name): self.kube.look(kind, "shop", name)["metadata"]["labels"]
            for kind in KINDS
            for name in self.kube.names_of(kind)
        }


def perturb(live):
    live["metadata"].setdefault("labels", {})["added"] = "x"


async def changed_world(life):
    """A world in which the second specification has just been asked for."""
    world = World()
    before, after = LIVES[life]
    if life != "made":
        world.put(**before)
        await world.look(2)
    world.change(after)
    real, world.kube = world.kube, world.refusing
    world.reconciler = world.operator()
    world.kube = real
    return world


async def requests_of(life):
    """What the passes after a change ask for, and what they come to."""
    world = await changed_world(life)
    await world.until_told()
    asked = [one for one in world.refusing.asked if one[1] != PIPELINES]
    return asked, world.contents(), world.reason("Ready")


def is_absence(request, status):
    """Whether an answer says only that an object is not there, which is no refusal."""
    verb, kind, _ = request
    return status == 404 and kind != CLUSTERS and verb in ("get", "delete")


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("life", LIVES)
async def test_refused_request_is_named_and_over_when_it_is_answered(life, status):
    requests, rest, ready = await requests_of(life)
    assert len(requests) >= 10
    untold = {}
    for request in requests:
        world = await changed_world(life)
        world.refusing.refused, world.refusing.status = request, status
        await world.until_told()
        told = world.reason("Ready"), world.message("Ready")
        _, kind, name = request
        is_named = told[0] == "Refused" and (kind.qualified in told[1] or name in told[1])
        is_named |= kind == CLUSTERS and status in (403, 404) and told[0] == "ClusterNotFound"
        if not is_named and not is_absence(request, status):
            untold[request] = told
        world.refusing.refused = None
        await world.until_told()
        if (world.contents(), world.reason("Ready")) != (rest, ready):
            untold[request] = world.contents(), world.message("Ready")
    assert untold == {}


async def test_status_that_hangs_ends_the_pass_and_the_objects_are_brought():
    world = World()
    await world.look(2)
    world.put(runtime="Local", image="another:1")
    for name in world.kube.names_of(CONFIG_MAPS):
        world.kube.remove(CONFIG_MAPS, "shop", name)

    def admit(_verb, body):
        if body["kind"] == PIPELINES.kind:
            raise UnansweredError("PATCH streampipelines/p/status: TimeoutError")

    world.kube.admit = admit
    for _ in range(3):
        with pytest.raises(UnansweredError, match="p/status"):
            await world.look()
    assert world.kube.names_of(CONFIG_MAPS) != []
    world.kube.admit = None
    await world.until_told()
    told = world.kube.look(PIPELINES, "shop", "p")
    assert told["status"]["observedGeneration"] == told["metadata"]["generation"]


async def test_no_workload_runs_beside_one_that_cannot_be_taken_away():
    for life in ("once", "scheduled", "continuous"):
        requests, _, _ = await requests_of(life)
        deletions = [one for one in requests if one[0] == "delete"]
        assert deletions != []
        for status in (403, 409, 422, 500):
            world = await changed_world(life)
            before = world.workloads()
            world.refusing.refused, world.refusing.status = deletions[0], status
            await world.until_told()
            assert world.workloads() == before
