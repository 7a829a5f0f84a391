"""Files that are replaced are noticed, however they are replaced."""

import os

import pytest

from liftbridge_broker.server.watching import FileWatch


@pytest.fixture
def file(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "tls.crt").write_text("a")
    (tmp_path / "data").symlink_to("first")
    (tmp_path / "tls.crt").symlink_to("data/tls.crt")
    return tmp_path / "tls.crt"


def swap_link(file):
    """As the kubelet does: another folder, and the link to it exchanged."""
    (file.parent / "second").mkdir()
    (file.parent / "second" / "tls.crt").write_text("a")
    (file.parent / "new").symlink_to("second")
    (file.parent / "new").rename(file.parent / "data")


def write_at_another_time(file):
    file.write_text("b")
    os.utime(file, ns=(1, 1))


CHANGES = {
    "linked elsewhere": swap_link,
    "written": lambda file: file.write_text("ab"),
    "written in one size": write_at_another_time,
    "replaced": lambda file: (
        file.with_name("other").write_text("a"),
        file.with_name("other").rename(file),
    ),
    "removed": lambda file: file.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_is_told_once(file, change):
    watch = FileWatch([str(file), ""])
    assert not watch.has_changed()
    CHANGES[change](file)
    assert watch.has_changed()
    assert not watch.has_changed()


def test_file_that_comes_is_a_change(tmp_path):
    watch = FileWatch([str(tmp_path / "late")])
    assert not watch.has_changed()
    (tmp_path / "late").write_text("")
    assert watch.has_changed()
