"""The process: adapters wired to the node, the pump, one timer, start and shutdown."""

import asyncio
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

import uvloop

from liftbridge_broker.adapters.observe.catalogue import load_catalogue
from liftbridge_broker.adapters.observe.logs import configure_logs
from liftbridge_broker.adapters.observe.observer import StructlogObserver
from liftbridge_broker.adapters.observe.redaction import Redactor
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.errors import InternalError, LiftbridgeError
from liftbridge_broker.model.units import MIB
from liftbridge_broker.server.libraries import warn_of_slow_libraries
from liftbridge_broker.server.process import Broker

KEPT_BLOCK_BYTES: Final = 16 * MIB
"""The process keeps freed memory up to twice this size."""

EXIT_OK = 0


def run(options: BrokerOptions, reload: Callable[[], BrokerOptions]) -> int:
    """Run a broker until SIGTERM or SIGINT, or until its disk fails.

    Args:
        options: Options of the broker.
        reload: Reads the configuration again, for SIGHUP.

    Returns:
        Exit code: 0 after a clean shutdown.

    Raises:
        LiftbridgeError: The start was refused, or the disk failed.
    """
    redactor = Redactor()
    for secret in (options.nats.password, options.nats.token, options.encryption.key):
        redactor.add(secret)
    configure_logs(
        level=options.logging.level,
        style=options.logging.format,
        stream=sys.stderr,
        redactor=redactor,
    )
    catalogue = load_catalogue()
    observer = StructlogObserver(catalogue)
    warn_of_slow_libraries(observer)
    broker = Broker(options, observer, catalogue, reload)
    refusals: list[LiftbridgeError] = []
    bugs: list[Exception] = []
    # glibc keeps freed memory up to the largest block that was ever freed. Without such a block,
    # each buffer of a megabyte causes page faults again: 1.2 us instead of 0.25 us of CPU a record
    # for bulk readers (bench: row batch read).
    bytes(KEPT_BLOCK_BYTES)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(broker))
    except* LiftbridgeError as group:
        refusals = _leaves(group)
    except* Exception as group:  # noqa: BLE001 - a bug stops the process, logged as one event
        bugs = [group]
    if bugs:
        raise _report_bug(observer, bugs[0])
    if refusals:
        raise refusals[0]
    return EXIT_OK


async def _serve(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    stop, hurry, reload = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_stop(name: str) -> None:
        if stop.is_set():
            hurry.set()
        broker.stop_reason = broker.stop_reason or name
        stop.set()

    def on_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            broker.fail(_report_bug(broker.observer, error))
        else:
            fields = {"text": context.get("message", ""), "reason": str(error or "")}
            broker.observer.transition("event_loop_complained", fields)

    loop.set_exception_handler(on_exception)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    await broker.run(stop, hurry, reload)


def _report_bug(observer: StructlogObserver, error: Exception) -> InternalError:
    """Log a bug with its location; the process must end with the returned error."""
    text = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    observer.transition("bug_found", {"reason": text, "exception": trace})
    return InternalError(f"stopped because of a bug: {text}")


def _leaves(group: BaseExceptionGroup[LiftbridgeError]) -> list[LiftbridgeError]:
    errors: list[LiftbridgeError] = []
    for error in group.exceptions:
        errors += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors
