"""One cluster and one image of the broker for all end-to-end tests of a run."""

import os
from collections.abc import Iterator

import pytest

from liftbridge_testkit.kube.choose import choose
from liftbridge_testkit.kube.cluster import Kubernetes, running


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Kubernetes]:
    with running(choose(os.environ)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def broker_image(kubernetes: Kubernetes) -> str:
    return kubernetes.image("broker")
