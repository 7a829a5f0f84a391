"""The port `Files` in memory, as shipped for tests of users; also used by tests of this project."""

from liftbridge_broker.adapters.memory.files import Fault, MemoryFiles
from liftbridge_broker.adapters.memory.power import PowerCutError

__all__ = ["Fault", "MemoryFiles", "PowerCutError"]
