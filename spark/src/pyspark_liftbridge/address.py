"""Addresses of archives that are the same in every process of Spark."""

from pathlib import Path


def whole_address(given: str) -> str:
    """An address with the whole path of a folder: a task begins in another folder than its driver.

    Args:
        given: A path, or an address with `://`, which stays as it is; so does no text at all.
    """
    return given if "://" in given or not given else str(Path(given).absolute())
