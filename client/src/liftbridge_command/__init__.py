"""The program `liftbridge` from its first moment on; what it does is in `liftbridge_client.cli`.

A package of its own, because the client takes long to import and a library leaves the signals of
its program alone.
"""

import os
import signal
import sys


def main() -> None:
    """Entry point.

    Until a command hears Ctrl-C itself, the system ends the program by it, as by SIGTERM. Python's
    `KeyboardInterrupt` would be a traceback amid the imports, or be dropped in one of their
    callbacks.
    """
    _open_standard_streams()
    # Otherwise gRPC writes a line for each attempt to connect, with names of its own sources.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from liftbridge_client.cli import main as call  # noqa: PLC0415 - see the package

    call()


def _open_standard_streams() -> None:
    """Have the null device where the caller closed one, as `>&-` of a shell does.

    Python has `None` there, and the first socket would get the number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))
