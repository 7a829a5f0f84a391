"""Stores: one of two writers wins, wherever an archive lies, or the place is refused."""

import io
import os
from threading import Barrier, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore as ObstoreMemory

from liftbridge_testkit.archive_runs import MemoryStore
from pyspark_liftbridge.archive.errors import DamagedError, StoreError, UnsupportedStoreError
from pyspark_liftbridge.archive.stores import objects
from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.archive.stores.objects import Objects
from pyspark_liftbridge.archive.stores.store import Below, check_store, open_store


@pytest.fixture(params=["folder", "objects", "below", "memory"])
def store(request, tmp_path):
    return {
        "folder": lambda: LocalFolder(tmp_path / "root"),
        "objects": lambda: Objects(ObstoreMemory(), "memory"),
        "below": lambda: Below(LocalFolder(tmp_path), "below/here/"),
        "memory": MemoryStore,
    }[request.param]()


def test_object_is_created_once(store):
    assert store.read("a/b", bytes_max=10) is None
    assert store.create("a/b", b"first")
    assert not store.create("a/b", b"second")
    assert store.read("a/b", bytes_max=10) == b"first"
    store.replace("a/b", b"third")
    assert store.read("a/b", bytes_max=5) == b"third"
    with pytest.raises(DamagedError):
        store.read("a/b", bytes_max=4)
    store.delete("a/b")
    store.delete("a/b")
    assert store.read("a/b", bytes_max=10) is None


def test_listing_is_sorted_and_goes_on_behind_a_path(store):
    for name in ("log/10", "log/9", "log/1", "data/x/y", "logs"):
        store.create(name, name.encode())
    found = store.listing("log/")
    assert [(one.path, one.size) for one in found] == [("log/1", 5), ("log/10", 6), ("log/9", 5)]
    assert [one.path for one in store.listing("log/", after="log/10")] == ["log/9"]
    assert [one.path for one in store.listing("log/", after="log/1.")] == ["log/10", "log/9"]
    assert len(store.listing("")) == 5
    assert list(store.listing("nothing/")) == []


def test_large_object_is_created_once_too(store):
    """obstore puts what is large in pieces, without any condition, unless it is told not to."""
    data = bytes(6 << 20)
    assert store.create("large", data)
    assert not store.create("large", data + b"x")
    assert len(store.read("large", bytes_max=8 << 20)) == len(data)


def test_parts_of_an_object_are_read(store):
    data = bytes(range(256)) * 10_000
    store.create("a/parts", data)
    assert store.open("a/none") is None
    with store.open("a/parts") as file:
        for start, size in ((0, 7), (1_999_990, 100), (300, 1_500_000), (2_559_990, 20)):
            assert file.seek(start) == start
            assert file.read(size) == data[start : start + size]
        assert file.seek(-5, os.SEEK_END) == len(data) - 5
        assert file.read() == data[-5:]
        assert file.read(1) == b""


def test_parquet_file_is_read_in_parts(store):
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": range(1_000)}), sink, row_group_size=100)
    store.create("file", sink.getvalue())
    with store.open("file") as file, pq.ParquetFile(file, buffer_size=4_096) as parquet:
        assert parquet.read_row_group(7).column("n").to_pylist() == list(range(700, 800))


def test_one_of_many_threads_wins_each_number(tmp_path):
    store = LocalFolder(tmp_path)
    wins = []
    barrier = Barrier(4)

    def race(name):
        barrier.wait()
        wins.extend(number for number in range(30) if store.create(f"log/{number}", name))

    threads = [Thread(target=race, args=(b"%d" % at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(30))
    assert len(store.listing("")) == 30


def test_folder_leaves_nothing_behind(tmp_path):
    store = open_store(str(tmp_path / "deep" / "root"))
    store.create("a", b"1")
    store.create("a", b"2")
    store.replace("a", b"3")
    assert [one.path for one in store.listing("")] == ["a"]


def test_folder_by_its_address(tmp_path):
    folder = tmp_path / "with blank"
    store = open_store(f"file://{str(folder).replace(' ', '%20')}")
    store.create("a", b"1")
    assert (folder / "a").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("uri", "options", "text"),
    [
        ("", {}, "the scheme '' is not one of file, s3"),
        ("hdfs://host/x", {}, "the scheme 'hdfs' is not one of file, s3, s3a, gs, az"),
        ("http://host/x", {}, "the scheme 'http' is not one of"),
        ("memory:///", {}, "the scheme 'memory' is not one of"),
        ("file://host/x", {}, "names the host 'host'"),
        ("some/folder", {"region": "x"}, "a folder takes no options, but region is set"),
        ("s3://[x", {}, r"'s3://\[x': .*IPv6"),
        ("file://[x", {}, r"'file://\[x': .*IPv6"),
        ("s3://bucket/x", {"colour": "red"}, "unknown option among colour"),
        ("s3://bucket/x", {"allow_http": "maybe"}, "failed to parse .*maybe.* as boolean"),
    ],
)
def test_address_that_is_none_is_refused_with_what_would_do(uri, options, text):
    with pytest.raises(UnsupportedStoreError, match=text) as told:
        open_store(uri, options)
    assert "Debug source" not in str(told.value)


def test_kinds_of_object_stores_are_opened_without_a_call():
    given = {
        "s3://bucket/x": {
            "region": "eu",
            "access_key_id": "a",
            "aws_secret_access_key": "b",
            "AWS_ALLOW_HTTP": "true",
            "timeout": "30s",
        },
        "az://container/x": {"account_name": "a", "account_key": "Yg==", "allow_http": "true"},
    }
    for uri, options in given.items():
        assert isinstance(objects.open_objects(uri, options), Objects)


class Overwriting(MemoryStore):
    """A store that knows no condition."""

    def create(self, path, data):
        self.objects[path] = data
        return True


class Silent(MemoryStore):
    """A store that refuses, and has written all the same."""

    def create(self, path, data):
        is_new = path not in self.objects
        self.objects[path] = data
        return is_new


@pytest.mark.parametrize(
    ("kind", "text"), [(Overwriting, "was overwritten"), (Silent, "reads b'second'")]
)
def test_store_in_which_two_can_win_is_refused(kind, text):
    store = kind()
    with pytest.raises(UnsupportedStoreError, match=text):
        check_store(store, "s3://old")
    assert store.objects == {}


def test_failure_of_a_folder_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = LocalFolder(tmp_path / "file")
    for act in (
        lambda: store.create("a/b", b"x"),
        lambda: store.replace("a/b", b"x"),
        lambda: store.read("a/b", bytes_max=1),
        lambda: store.delete("a/b"),
    ):
        with pytest.raises(StoreError, match="cannot be"):
            act()


def test_folder_without_hard_links_is_told(tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(StoreError, match="a file system with hard links"):
        open_store(str(tmp_path / "root"))
    assert not list((tmp_path / "root").rglob("*.tmp-*"))
