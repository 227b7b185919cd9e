"""Hugging Face: directories that its library writes, and its IterableDataset over a loader."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import forebay

datasets = pytest.importorskip("datasets", reason="datasets could not be had")

import forebay.huggingface  # noqa: E402

ROWS = 96

pytestmark = pytest.mark.filterwarnings("ignore:loader .* batch buffers of this rank are still in use")


@pytest.fixture(scope="module")
def source():
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["a", "b", "c"]),
            "ids": datasets.List(datasets.Value("int32")),
            "box": datasets.List(datasets.Value("float32"), length=4),
            "pixels": datasets.Array2D((2, 3), "uint8"),
        }
    )
    rows = range(ROWS)
    return datasets.Dataset.from_dict(
        {
            "text": [f"text {row}" for row in rows],
            "label": [row % 3 for row in rows],
            "ids": [list(range(row % 5)) for row in rows],
            "box": [[row, row + 1, row + 2, row + 3] for row in rows],
            "pixels": [np.full((2, 3), row, np.uint8) for row in rows],
        },
        features=features,
    )


@pytest.fixture
def options():
    return {"order": "group", "seed": 3, "node_memory": "16MiB", "world": "single"}


def assert_rows(dataset, rows):
    assert len(dataset) == len(rows)
    for number, row in enumerate(rows):
        sample = dataset[number]
        assert bytes(sample["text"]).decode() == row["text"]
        assert sample["label"] == row["label"]
        for name in ("ids", "box", "pixels"):
            assert np.array_equal(sample[name], np.asarray(row[name], sample[name].dtype))


@pytest.mark.parametrize("shards", [1, 3])
def test_what_save_to_disk_writes_is_a_dataset(tmp_path, source, shards):
    source.save_to_disk(tmp_path / "saved", num_shards=shards)
    dataset = forebay.open(tmp_path / "saved")
    assert dataset.format == "arrow"
    assert len(dataset.paths) == shards
    assert dataset.fields["pixels"] == ("uint8", (2, 3))
    assert dataset.fields["box"] == ("float32", (4,))
    assert_rows(dataset, list(source))


def test_rows_of_a_selection_come_in_its_order(tmp_path, source):
    chosen = source.select([5, 3, 70])
    chosen.save_to_disk(tmp_path / "saved")
    assert_rows(forebay.open(tmp_path / "saved"), list(chosen))


def test_splits_are_named_by_their_paths(tmp_path, source):
    both = datasets.DatasetDict({"train": source, "test": source.select(range(9))})
    both.save_to_disk(tmp_path / "both")
    with pytest.raises(forebay.OptionError) as found:
        forebay.open(tmp_path / "both")
    assert str(tmp_path / "both/train") in str(found.value)
    assert len(forebay.open(tmp_path / "both/test")) == 9


def test_parquet_that_the_library_writes_keeps_shapes(tmp_path, source):
    repository = tmp_path / "repository"
    repository.mkdir()
    source.to_parquet(repository / "train-00000-of-00001.parquet")
    dataset = forebay.open(repository)
    assert dataset.format == "parquet"
    assert dataset.fields["pixels"] == ("uint8", (2, 3))
    assert_rows(dataset, list(source))


def test_the_cache_of_load_dataset_is_a_dataset(tmp_path, source):
    source.to_parquet(tmp_path / "train.parquet")
    loaded = datasets.load_dataset(
        "parquet",
        data_files=str(tmp_path / "train.parquet"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    [directory] = {path.parent for path in (tmp_path / "cache").rglob("*.arrow")}
    assert_rows(forebay.open(directory), list(loaded))


def test_images_are_decoded_in_the_engine(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pictures = [image.fromarray(np.full((8, 8, 3), 20 * n, np.uint8)) for n in range(6)]
    table = datasets.Dataset.from_dict({"image": pictures}).cast_column("image", datasets.Image())
    table.save_to_disk(tmp_path / "images")
    dataset = forebay.open(tmp_path / "images", decode={"image": forebay.image(size=8)})
    assert dataset.fields["image"] == ("uint8", (8, 8, 3))
    assert [int(dataset[n]["image"].mean()) for n in range(6)] == [20 * n for n in range(6)]


@pytest.fixture
def path(tmp_path, source):
    source.save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def expected(path, options, epochs):
    with forebay.Loader(path, 8, **options, name="expected") as loader:
        return [[int(row[0]) for batch in loader for row in batch["box"]] for _ in range(epochs)]


def numbers(samples):
    return [int(sample["box"][0]) for sample in samples]


def test_samples_come_in_the_order_of_the_loader(path, options):
    wanted = expected(path, options, 3)
    found = forebay.huggingface.dataset(path, 8, **options)
    assert isinstance(found, datasets.IterableDataset)
    assert [numbers(found) for _ in range(3)] == wanted


def test_batches_are_dictionaries_of_arrays(path, options):
    found = list(forebay.huggingface.dataset(path, 8, batches=True, **options))
    assert len(found) == ROWS // 8
    assert found[0]["pixels"].shape == (8, 2, 3)
    assert [int(row[0]) for batch in found for row in batch["box"]] == expected(path, options, 1)[0]


@pytest.mark.parametrize(
    ("batches", "taken"),
    [(False, taken) for taken in (0, 1, 8, 11, 12, 95)] + [(True, taken) for taken in (0, 1, 11)],
)
def test_a_state_resumes_with_the_next_item(path, options, taken, batches):
    def made(name):
        return forebay.huggingface.dataset(path, 8, batches=batches, **options, name=name)

    def values(items):
        return [np.asarray(item["box"]).tolist() for item in items]

    found = made("found")
    begun = values(itertools.islice(found, taken))
    state = json.loads(json.dumps(found.state_dict()))
    again = made("again")
    again.load_state_dict(state)
    assert begun + values(again) == values(made("whole"))


def test_a_state_after_the_last_item_is_that_of_the_next_epoch(path, options):
    found = forebay.huggingface.dataset(path, 8, **options)
    numbers(found)
    again = forebay.huggingface.dataset(path, 8, **options, name="again")
    again.load_state_dict(found.state_dict())
    assert numbers(again) == expected(path, options, 2)[1]


def test_functions_of_the_library_keep_the_state(path, options):
    def doubled(sample):
        return {"label": 2 * sample["label"]}

    found = forebay.huggingface.dataset(path, 8, **options).map(doubled)
    items = iter(found)
    begun = [int(next(items)["box"][0]) for _ in range(13)]
    state = found.state_dict()
    again = forebay.huggingface.dataset(path, 8, **options, name="again").map(doubled)
    again.load_state_dict(state)
    assert begun + numbers(again) == expected(path, options, 1)[0]
    assert {int(sample["label"]) for sample in again} == {0, 2, 4}


def test_tensors_come_with_the_format_of_torch(path, options):
    torch = pytest.importorskip("torch")
    found = next(iter(forebay.huggingface.dataset(path, 8, **options).with_format("torch")))
    assert isinstance(found["box"], torch.Tensor)
    assert tuple(found["pixels"].shape) == (2, 3)


@pytest.fixture
def first_of_two(monkeypatch):
    """The first of two nodes, which goes on without the other."""
    monkeypatch.setenv("FOREBAY_JOB_ADDRESS", "none")
    return {"world": forebay.World(rank=0, size=2, local_rank=0, local_size=1, node=0, job="split")}


def test_a_part_of_a_rank_is_not_split_again_by_node(path, options, first_of_two):
    from datasets.distributed import split_dataset_by_node

    found = forebay.huggingface.dataset(path, 8, **options | first_of_two)
    whole = len(list(found))
    assert whole < ROWS
    for part in (found, found.map(lambda sample: sample)):
        # The part of this rank is what it is already.
        assert len(list(split_dataset_by_node(part, rank=0, world_size=2))) == whole
        for rank, size in ((1, 2), (0, 3), (0, 4)):
            with pytest.raises(forebay.OptionError, match="leave out split_dataset_by_node"):
                list(split_dataset_by_node(part, rank=rank, world_size=size))
    alone = forebay.huggingface.dataset(path, 8, **options)
    parts = [list(split_dataset_by_node(alone, rank=rank, world_size=2)) for rank in range(2)]
    assert sum(map(len, parts)) == ROWS


def test_accelerate_takes_the_part_of_a_rank_as_it_is_or_says_how(path, options, first_of_two):
    pytest.importorskip("accelerate", reason="accelerate could not be had")
    torch = pytest.importorskip("torch")
    from accelerate.data_loader import prepare_data_loader

    found = forebay.huggingface.dataset(path, 8, **options | first_of_two)
    whole = numbers(found)

    def prepared(dispatch, dataset):
        batches = torch.utils.data.DataLoader(dataset.with_format("torch"), batch_size=16)
        return prepare_data_loader(
            batches,
            torch.device("cpu"),
            num_processes=2,
            process_index=0,
            put_on_device=True,
            dispatch_batches=dispatch,
        )

    with pytest.raises(forebay.OptionError, match=r"dispatch_batches=False"):
        list(prepared(None, found.select_columns(["box"])))
    found = forebay.huggingface.dataset(path, 8, **options | first_of_two)
    boxes = [batch["box"] for batch in prepared(False, found.select_columns(["box"]))]
    assert [int(box[0]) for batch in boxes for box in batch] == whole


def test_a_loader_has_one_reader(path, options):
    torch = pytest.importorskip("torch")
    found = forebay.huggingface.dataset(path, 8, **options)
    with pytest.raises(forebay.OptionError, match="num_workers=0"):
        found._ex_iterable.shard_data_sources(2, 0)
    loader = torch.utils.data.DataLoader(found.select_columns(["label"]).with_format("torch"), batch_size=16)
    assert sum(len(batch["label"]) for batch in loader) == ROWS
