"""The models of the API server answer as a real one does.

Each story is played on an API server that runs with its etcd alone and recorded; the models are
asked the same at once. With `--rewrite` the traces that `tests/unit/testkit` plays again without a
server are written anew.
"""

import gzip
from random import Random

import pytest

from liftbridge_operator.kube.client import KubeClient, connect
from liftbridge_testkit.kube.control_plane import ADMIN
from liftbridge_testkit.kube.replay import replay
from liftbridge_testkit.kube.trace import Recorder, text_of
from liftbridge_testkit.operator_sim.replayed import replay_values
from liftbridge_testkit.operator_sim.traced import MANAGERS, NAMESPACE, STORIES, Cast
from liftbridge_testkit.repository import ROOT

pytestmark = pytest.mark.e2e

KEPT = ROOT / "tests" / "unit" / "testkit" / "traces"


@pytest.fixture(scope="module")
def plane(control_plane):
    control_plane.kubernetes.kubectl("create", "namespace", NAMESPACE)
    return control_plane


async def record(story):
    recorder = Recorder()
    async with connect(in_flight_max=8) as api:

        def port(manager):
            client = KubeClient(api, fence=None, rng=Random(1), manager=manager)
            return recorder.of(client, manager)

        await story(Cast(*map(port, MANAGERS)))
    return recorder.lines()


@pytest.mark.parametrize("name", STORIES)
async def test_models_answer_as_the_server_does(plane, name, rewrite, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig(ADMIN)))
    lines = await record(STORIES[name])
    for path in KEPT.glob(f"{name}.jsonl*") if rewrite else ():
        text = text_of(lines).encode()
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    assert str(await replay(lines) or "") == ""
    assert str(await replay_values(lines, name) or "") == ""
