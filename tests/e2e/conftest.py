"""One cluster, one image of the broker and one operator for all end-to-end tests of a run."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from liftbridge_testkit.kube.choose import Cluster, choose
from liftbridge_testkit.kube.cluster import SCRIPTS, Kubernetes, running, timed
from liftbridge_testkit.kube.control_plane import PROGRAMS, ControlPlane
from liftbridge_testkit.kube.definitions import define
from liftbridge_testkit.kube.nodes import Machines
from liftbridge_testkit.kube.outcomes import Outcomes
from liftbridge_testkit.kube.release import OperatorRelease
from liftbridge_testkit.kube.stories import Stage, Story, story

Play = Callable[..., AbstractContextManager[Story]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "story(name, minutes): a story that `make e2e-full` plays")
    config.addinivalue_line("markers", "full: only `make e2e-full` plays it")
    config.pluginmanager.register(Outcomes())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stories come last: they keep an operator, which other tests would meet."""
    items.sort(key=lambda item: item.get_closest_marker("story") is not None)


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Kubernetes]:
    with running(choose(os.environ)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server of our own with our definitions, whatever cluster other tests are on."""
    if not (PROGRAMS / "kube-apiserver").exists():
        subprocess.run([str(SCRIPTS / "build.sh")], check=True)
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        define(plane.kubernetes)
        yield plane


@pytest.fixture(scope="session")
def broker_image(kubernetes: Kubernetes) -> str:
    return kubernetes.image("broker")


@pytest.fixture(scope="session")
def next_image(kubernetes: Kubernetes, broker_image: str) -> str:
    """The image of the broker under another name, so that pods are made anew with it."""
    if kubernetes.kind is not Cluster.OWN:
        return os.environ["LIFTBRIDGE_NEXT_BROKER_IMAGE"]
    other = f"{broker_image}-next"
    Machines(kubernetes).retag(broker_image, other)
    return other


@pytest.fixture(scope="session")
def stage(kubernetes: Kubernetes, broker_image: str, next_image: str) -> Iterator[Stage]:
    image = kubernetes.image("operator")
    operator = OperatorRelease(kubernetes)
    try:
        with timed("operator installed"):
            operator.install(image, broker_image)
        yield Stage(kubernetes, operator, broker_image, next_image, image)
    finally:
        operator.uninstall()


@pytest.fixture
def play(stage: Stage, request: pytest.FixtureRequest) -> Play:
    """The story of this test, by the name in its mark.

    In those of the full run the operator is killed at one of its writes unless they say otherwise.
    """
    mark = request.node.get_closest_marker("story")
    assert mark is not None, "a test that plays a story is marked with its name"
    is_full = request.node.get_closest_marker("full") is not None
    return partial(story, stage, mark.args[0], kills_operator=is_full)
