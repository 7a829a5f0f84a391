"""The port `Files` in memory, as it is shipped for tests of users: the disk of our own."""

from liftbridge_broker.adapters.memory.files import Fault, MemoryFiles, PowerCutError

__all__ = ["Fault", "MemoryFiles", "PowerCutError"]
