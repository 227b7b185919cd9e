"""Tables of every type, for the tests of Arrow and Parquet, and what pyarrow says they hold."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import numpy as np
import pyarrow as pa

import forebay

ROWS = 53


def numbers(dtype, shape=(), seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(0, 99, (ROWS, *shape)).astype(dtype)


def fixed_lists(values):
    """Lists of one length, nested as the axes of an array."""
    found = pa.array(values.reshape(-1))
    for length in reversed(values.shape[1:]):
        found = pa.FixedSizeListArray.from_arrays(found, length)
    return found


def ragged(kind, item=int):
    return pa.array([[item(n + k) for k in range(n % 4)] for n in range(ROWS)], kind)


TEXTS = ["é" * (number % 5) + str(number) for number in range(ROWS)]

COLUMNS = {
    **{
        name: pa.array(numbers(name))
        for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    },
    **{name: pa.array(numbers(name)) for name in ["float16", "float32", "float64"]},
    "bool": pa.array(numbers("bool") | (np.arange(ROWS) % 3 == 0)),
    "string": pa.array(TEXTS),
    "large_string": pa.array(TEXTS, pa.large_string()),
    "binary": pa.array([text.encode() for text in TEXTS]),
    "large_binary": pa.array([text.encode() for text in TEXTS], pa.large_binary()),
    "empty": pa.array([""] * ROWS),
    "fixed_binary": pa.array([bytes([n, 2, n]) for n in range(ROWS)], pa.binary(3)),
    "list": ragged(pa.list_(pa.int32())),
    "large_list": ragged(pa.large_list(pa.float64()), float),
    "list_of_bool": ragged(pa.list_(pa.bool_()), lambda number: number % 3 == 0),
    "fixed_list": fixed_lists(numbers("float32", (5,))),
    "nested_fixed_list": fixed_lists(numbers("int16", (2, 3))),
    "fixed_list_of_bool": fixed_lists(numbers("int8", (9,)) > 50),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(numbers("float32", (3, 4))),
    "timestamp_ns": pa.array(numbers("int64"), pa.timestamp("ns")),
    "timestamp_ms": pa.array(numbers("int64"), pa.timestamp("ms", tz="UTC")),
    "duration": pa.array(numbers("int64"), pa.duration("us")),
    "date32": pa.array([datetime.date(2020, 1, 1 + number % 28) for number in range(ROWS)]),
    "date64": pa.array([datetime.date(2020, 1, 1 + number % 28) for number in range(ROWS)], pa.date64()),
    "time32": pa.array(numbers("int32"), pa.time32("ms")),
    "time64": pa.array(numbers("int64"), pa.time64("ns")),
    "dictionary": pa.array([TEXTS[number % 7] for number in range(ROWS)]).dictionary_encode(),
    "dictionary_of_numbers": pa.array(numbers("float64") % 5).dictionary_encode(),
    "struct": pa.array([{"a": number, "b": {"c": str(number)}} for number in range(ROWS)]),
}

UNREADABLE = {
    "decimal": pa.array([decimal.Decimal("1.5")] * 3),
    "null": pa.nulls(3),
    "list_of_strings": pa.array([["a"]] * 3),
    "list_of_lists": pa.array([[[1], [2, 3]]] * 3),
    "list_of_structs": pa.array([[{"a": 1}]] * 3),
    "map": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int32())),
    "string_view": pa.array(["a", "a string that is not short", "b"], pa.string_view()),
    "union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a"] * 3)]
    ),
    "run_end_encoded": pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]),
    "list_of_timestamps": pa.array([[1]] * 3, pa.list_(pa.timestamp("ns"))),
    "interval": pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
}


def plain_table():
    """A table with columns of most kinds."""
    names = ["bool", "list", "fixed_list", "timestamp_ns", "dictionary", "struct", "binary"]
    return pa.table(
        {"text": COLUMNS["string"], "label": COLUMNS["int64"], **{name: COLUMNS[name] for name in names}}
    )


def write_arrow(path: Path, table: pa.Table, layout: str, compression: str | None, rows: int) -> Path:
    """Write a file or stream in batches of ``rows``."""
    new = pa.ipc.new_file if layout == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression, unify_dictionaries=layout == "file")
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def outcomes_of_damage(
    directory: Path, whole: bytes, format: str, *, seed: int, rows: int, **options: object
) -> set[str]:
    """Read 120 damaged copies of a file; return whether any was read, and any refused."""
    rng = np.random.default_rng(seed)
    outcomes = set()
    for number in range(120):
        damaged = bytearray(whole)
        if number % 3:
            for place in rng.integers(0, len(whole), 1 + number % 5):
                damaged[place] = rng.integers(0, 256)
        else:
            del damaged[int(rng.integers(1, len(whole))) :]
        path = directory / f"damaged-{number}"
        path.write_bytes(damaged)
        try:
            dataset = forebay.open(path, format=format, **options)
            for row in range(min(len(dataset), rows)):
                dataset[row]
            outcomes.add("read")
        except (forebay.FormatError, forebay.OptionError):
            outcomes.add("refused")
    return outcomes


def expected(table: pa.Table) -> list[dict[str, object]]:
    """The samples of a table, as pyarrow reads them."""
    columns = {}
    for name, column in zip(flat(table).column_names, flat(table).columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.combine_chunks().cast(column.type.value_type)
        if isinstance(column.type, pa.FixedShapeTensorType):
            columns[name] = list(column.combine_chunks().to_numpy_ndarray())
            continue
        if pa.types.is_date32(column.type) or pa.types.is_time32(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_time64(column.type):
            column = column.cast(pa.int64())
        elif pa.types.is_date64(column.type):
            column = column.cast(pa.timestamp("ms"))
        columns[name] = _values(column)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def flat(table: pa.Table) -> pa.Table:
    """Return a table with the members of structures as columns."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def _values(column):
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        kind = "M8" if pa.types.is_timestamp(column.type) else "m8"
        numbers = column.cast(pa.int64()).to_numpy()
        return list(numbers.view(f"{kind}[{column.type.unit}]"))
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]


def assert_equal(samples, table: pa.Table) -> None:
    """Compare samples with what pyarrow reads."""
    wanted = expected(table)
    assert len(samples) == len(wanted)
    for found, row in zip(samples, wanted, strict=True):
        assert list(found) == list(row)
        for name, value in row.items():
            if isinstance(value, bytes):
                one = found[name]
                assert (one if isinstance(one, bytes) else np.asarray(one).tobytes()) == value, name
            else:
                assert np.array_equal(np.asarray(found[name]), np.asarray(value)), name
                if isinstance(value, np.ndarray | np.generic):
                    assert np.asarray(found[name]).dtype == value.dtype


def walk(dataset: forebay.Dataset, order: str = "sequential") -> list[dict[str, object]]:
    """All samples through a loader, by number."""
    rows: dict[int, dict[str, object]] = {}
    with forebay.Loader(
        dataset, 8, order=order, last_batch="partial", expected_epochs=1, world="single"
    ) as loader:
        for batch in loader:
            for position, number in enumerate(batch.indices):
                assert int(number) not in rows
                rows[int(number)] = {name: np.array(column[position]) for name, column in batch.items()}
    return [rows[number] for number in range(len(rows))]
