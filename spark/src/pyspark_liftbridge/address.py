"""Archive addresses that are valid in every process of Spark."""

from pathlib import Path


def whole_address(given: str) -> str:
    """Make a folder's path absolute: a task starts in another working directory than its driver.

    Args:
        given: A path, or an address with `://`, which is not changed; nor is an empty text.
    """
    return given if "://" in given or not given else str(Path(given).absolute())
