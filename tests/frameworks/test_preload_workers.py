"""Workers of torch's DataLoader under the preload library, however they are started."""

from __future__ import annotations

import pytest

from frameworks.served_programs import FILES, check_served, run_without, write_files

pytest.importorskip("torch")

WORKERS = """
import pathlib
import zlib

import torch.utils.data


class Files(torch.utils.data.Dataset):
    def __init__(self):
        self.paths = sorted(pathlib.Path('.').glob('*.bin'))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, number):
        data = self.paths[number].read_bytes()
        return torch.tensor([zlib.crc32(data), len(data)])


if __name__ == '__main__':
    torch.manual_seed(1)
    loader = torch.utils.data.DataLoader(
        Files(), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context='{method}',
        persistent_workers=True,
    )
    for epoch in range(2):
        print([batch.tolist() for batch in loader])
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("workers") / "data")


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    """What the program prints without the library; the same with all methods."""
    return run_without(source, tmp_path_factory.mktemp("program"), WORKERS.format(method="fork"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_dataloader_read_copies(method, make_copies, source, expected, tmp_path):
    check_served(make_copies(source), tmp_path, WORKERS.format(method=method), 2 * FILES, expected)
