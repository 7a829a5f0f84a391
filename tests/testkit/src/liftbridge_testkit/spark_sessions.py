"""The end of a session of Spark, in a bounded time: on a busy machine a JVM may take minutes."""

from threading import Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS: Final = 60.0


def stop_within(session: "SparkSession", seconds: float = STOP_SECONDS) -> bool:
    """Stop a session that this process has begun, and kill its JVM if it does not stop in time.

    Returns:
        Whether it stopped by itself.
    """
    # The process that PySpark has made has no other name.
    gateway = session.sparkContext._gateway
    assert gateway is not None, "no session of Spark Connect"
    stopping = Thread(target=session.stop, name="stop-spark", daemon=True)
    stopping.start()
    stopping.join(seconds)
    if not stopping.is_alive():
        return True
    gateway.proc.kill()
    gateway.proc.wait()
    return False
