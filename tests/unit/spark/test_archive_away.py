"""A store that is away while a file is read is not taken for a damaged file."""

import os
from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID, records
from pyspark_liftbridge.archive.contents import read_records
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.errors import DamagedError, StoreError
from pyspark_liftbridge.archive.files import Chance, Place, Sizes, write_files
from pyspark_liftbridge.archive.reading import File, records_of
from pyspark_liftbridge.archive.stores.folder import LocalFolder

ROWS = 1_000


class Folder(LocalFolder):
    """A folder that can be made to fail while a file of it is open."""

    def open(self, path: str):
        self.file = super().open(path)
        return self.file

    def go_away(self):
        """Make what is open a folder, which cannot be read: a real error of the system."""
        folder = os.open("/", os.O_RDONLY)
        os.dup2(folder, self.file.fileno())
        os.close(folder)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def add(folder):
    """A file of several row groups."""
    names = map("{:04}".format, count())
    span = delta.Span(0, 0, ROWS)
    place, chance = Place(STREAM, STREAM_ID, span), Chance(lambda: next(names), NOW_MS)
    batch = records(range(ROWS))
    values = [os.urandom(1_000) for _ in range(ROWS)]
    batch = batch.set_column(
        batch.schema.get_field_index("value"), batch.schema.field("value"), pa.array(values)
    )
    (one,) = write_files(
        folder, place, [batch], chance, Sizes(group_least=200_000, group_most=200_000)
    ).adds
    return one


def by_offsets(folder, add) -> Iterator[pa.RecordBatch]:
    file = File(add.path, 0, ROWS, is_ordered=True)
    return records_of(folder, [file], delta.Span(0, 0, ROWS), ["offset", "value"])


@pytest.mark.parametrize("reader", [by_offsets, read_records])
def test_store_that_goes_away_within_a_file_is_no_damage(folder, add, reader):
    reading = reader(folder, add)
    assert next(reading).num_rows < ROWS
    folder.go_away()
    with pytest.raises(StoreError, match="cannot be read"):
        list(reading)


@pytest.mark.parametrize("reader", [by_offsets, read_records])
def test_file_that_is_cut_within_is_damaged(folder, add, reader):
    reading = reader(folder, add)
    next(reading)
    os.truncate(folder.file.name, 300_000)
    with pytest.raises(DamagedError, match="not a Parquet file of an archive"):
        list(reading)
