"""The process: adapters wired to the node, the pump, one timer, start and shutdown."""

import asyncio
import signal
import sys
from collections.abc import Callable

import uvloop

from liftbridge_broker.adapters.observe.catalogue import load_catalogue
from liftbridge_broker.adapters.observe.logs import configure_logs
from liftbridge_broker.adapters.observe.observer import StructlogObserver
from liftbridge_broker.adapters.observe.redaction import Redactor
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.server.process import Broker

EXIT_OK = 0


def run(options: BrokerOptions, reload: Callable[[], BrokerOptions]) -> int:
    """Run a broker until SIGTERM or SIGINT, or until its disk fails.

    Args:
        options: What it is told.
        reload: Reads the configuration again, for SIGHUP.

    Returns:
        Exit code: 0 after a clean shutdown.

    Raises:
        LiftbridgeError: The start was refused, or the disk failed.
    """
    redactor = Redactor()
    for secret in (options.nats.password, options.nats.token):
        redactor.add(secret)
    configure_logs(
        level=options.logging.level,
        style=options.logging.format,
        stream=sys.stderr,
        redactor=redactor,
    )
    catalogue = load_catalogue()
    broker = Broker(options, StructlogObserver(catalogue), catalogue, reload)
    refusals: list[LiftbridgeError] = []
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(broker))
    except* LiftbridgeError as group:
        refusals = _leaves(group)
    if refusals:
        raise refusals[0]
    return EXIT_OK


async def _serve(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    stop, reload = asyncio.Event(), asyncio.Event()

    def on_stop(name: str) -> None:
        broker.stop_reason = name
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    await broker.run(stop, reload)


def _leaves(group: BaseExceptionGroup[LiftbridgeError]) -> list[LiftbridgeError]:
    found: list[LiftbridgeError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
