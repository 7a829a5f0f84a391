"""The pytest fixture `liftbridge`: a broker in memory for one test.

pytest loads this wherever the client is installed, so it is a package of its own, and neither the
client nor the broker is imported before the fixture is used. pytest-asyncio runs the asynchronous
fixtures, or another plugin that supports them.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from liftbridge_client.testing import Broker

_fixture: Callable[..., Any] = pytest.fixture
with contextlib.suppress(ModuleNotFoundError):  # other plugins accept pytest fixtures
    import pytest_asyncio

    _fixture = pytest_asyncio.fixture


@pytest.fixture
def liftbridge_config() -> Mapping[str, str]:
    """Settings of the broker; override it in your own tests (see `liftbridge_client.testing`)."""
    return {}


@_fixture
async def liftbridge(liftbridge_config: Mapping[str, str]) -> "AsyncIterator[Broker]":
    """A running `liftbridge_client.testing.Broker`, stopped after the test."""
    from liftbridge_client.testing import Broker  # noqa: PLC0415 - see the module

    async with Broker(config=liftbridge_config) as broker:
        yield broker
