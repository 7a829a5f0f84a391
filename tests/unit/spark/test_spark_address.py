"""Addresses of archives, as tasks get them."""

import pytest

from pyspark_liftbridge.address import whole_address


def test_a_folder_is_named_with_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert whole_address("kept/here") == str(tmp_path / "kept" / "here")


@pytest.mark.parametrize("address", ["/archive", "file:///archive", "s3://bucket/path", ""])
def test_an_address_of_its_own_stays(address):
    assert whole_address(address) == address
