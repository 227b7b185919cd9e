"""Dropping files from the page cache, and telling what is in it."""

from __future__ import annotations

import pytest

from forebay.tools.ranks import page_cache


def test_a_dropped_file_is_not_resident_and_a_read_one_is(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(4 << 20))
    page_cache.drop(file)
    share = page_cache.resident_share(file)
    if share is None:
        pytest.skip("this file system does not tell what is in the page cache")
    assert share == 0
    file.read_bytes()
    assert page_cache.resident_share(file) == 1
