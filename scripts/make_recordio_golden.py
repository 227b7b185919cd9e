"""Write the golden RecordIO files of the tests with MXNet's own library.

MXNet 1.9.1 is the last release and wants an old numpy, so it lives in an environment of its own,
once:

    python3.11 -m venv /tmp/mxnet && /tmp/mxnet/bin/pip install mxnet==1.9.1 numpy==1.23.5
    /tmp/mxnet/bin/python scripts/make_recordio_golden.py tests/formats/golden/recordio

The tests make the records again (`tests/support/recordio_records.py`); only what the library makes
of them is kept.
"""

import sys
from pathlib import Path

import numpy
from mxnet import recordio

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))
from recordio_records import HEADERS, image_records, plain_records


def main() -> None:
    """Write all files into the directory that is named."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    plain = recordio.MXRecordIO(str(directory / "plain.rec"), "w")
    for record in plain_records():
        plain.write(record)
    plain.close()
    indexed = recordio.MXIndexedRecordIO(str(directory / "indexed.idx"), str(directory / "indexed.rec"), "w")
    for key, record in enumerate(plain_records()):
        indexed.write_idx(key, record)
    indexed.close()
    for name in HEADERS:
        file = recordio.MXRecordIO(str(directory / f"{name}.rec"), "w")
        for label, identity, image in image_records(name):
            value = label if isinstance(label, float) else numpy.array(label, numpy.float32)
            file.write(recordio.pack(recordio.IRHeader(0, value, identity, 0), image))
        file.close()


if __name__ == "__main__":
    main()
