"""Dropping files from the page cache, and telling what is in it."""

from __future__ import annotations

import pytest

import support
from forebay.tools.ranks import page_cache


def test_a_dropped_file_is_not_resident_and_a_read_one_is(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(4 << 20))
    # The kernel keeps pages that are in use at the moment, as on a busy machine.
    for _ in range(support.TRIES):
        page_cache.drop(file)
        share = page_cache.resident_share(file)
        if share is None:
            pytest.skip("this file system does not tell what is in the page cache")
        if share == 0:
            break
    assert share == 0
    file.read_bytes()
    assert page_cache.resident_share(file) == 1
