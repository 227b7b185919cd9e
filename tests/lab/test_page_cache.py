"""Dropping files from the page cache, and telling what is in it."""

from __future__ import annotations

import support
from forebay_lab.ranks import page_cache


def test_a_dropped_file_is_not_resident_and_a_read_one_is(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(4 << 20))
    support.drop_from_page_cache(file)
    file.read_bytes()
    assert page_cache.resident_share(file) == 1
