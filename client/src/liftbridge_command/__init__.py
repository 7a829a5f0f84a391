"""Entry point of the program `liftbridge`; its commands are in `liftbridge_client.cli`.

It is a separate package for two reasons. Importing the client takes long, and a library must not
change the signal handling of its program.
"""

import os
import signal
import sys
from importlib.metadata import version


def main() -> None:
    """Entry point.

    Until a command handles Ctrl-C itself, it ends the program immediately, as SIGTERM does.
    Python's `KeyboardInterrupt` would cause a traceback during the imports, or be dropped in one of
    their callbacks.
    """
    _open_standard_streams()
    if sys.argv[1:] == ["--version"]:  # answered before the imports, which take ten times as long
        sys.stdout.write(f"liftbridge {version('liftbridge')}\n")
        return
    # Otherwise gRPC logs each attempt to connect, with names of its source files.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from liftbridge_client.cli import main as call  # noqa: PLC0415 - see the package

    call()


def _open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed, as by `>&-` in a shell.

    Python sets such a stream to `None`, and the first socket would get its number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: `number`
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))
