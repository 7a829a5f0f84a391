"""The program `liftbridge` from its first moment on; what it does is in `liftbridge_client.cli`.

A package of its own, because the client takes long to import and a library leaves the signals of
its program alone.
"""

import signal


def main() -> None:
    """Entry point.

    Until a command hears Ctrl-C itself, the system ends the program by it, as by SIGTERM. Python's
    `KeyboardInterrupt` would be a traceback amid the imports, or be dropped in one of their
    callbacks.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from liftbridge_client.cli import main as call  # noqa: PLC0415 - see the package

    call()
