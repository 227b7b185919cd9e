"""Make the environment of lab/studies/frameworks: framework tests, and other loaders.

In order:

1. ``scripts/frameworks.py`` makes ``.venv-frameworks``, if it is missing.
2. ``.venv-compared`` gets a path to its packages and to this one.
3. The other packages are installed without what they require, which would bring CUDA's libraries.
   Where one cannot be had, a line says so, and the rows that need it are skipped.

It takes about 20 s and 0.3 GB beside those of step 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import frameworks

ENVIRONMENT = frameworks.ROOT / ".venv-compared"

PACKAGES = (
    # What decodes images, as the rows of `jpeg` do it.
    ("pillow>=11", "simplejpeg==1.9.0"),
    ("torchvision==0.29.2",),
    ("spdl==0.8.0", "spdl-core==0.8.0", "spdl-io==0.8.0"),
    (
        "litdata==0.2.76",
        "boto3",
        "botocore",
        "s3transfer",
        "jmespath",
        "python-dateutil",
        "tifffile",
        "obstore",
    ),
)


def make() -> int:
    """Make the environment; return an exit status."""
    if status := frameworks.main():
        return status
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    python = ENVIRONMENT / "bin/python"
    (packages,) = (ENVIRONMENT / "lib").glob("python3*/site-packages")
    (shared,) = (frameworks.ENVIRONMENT / "lib").glob("python3*/site-packages")
    (packages / "shared.pth").write_text(
        f"{frameworks.ROOT / 'python'}\n{frameworks.ROOT / 'lab/python'}\n{shared}\n"
    )
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    for names in PACKAGES:
        if subprocess.run([*pip, *names], check=False).returncode != 0:
            print(f"compared: {names[0]} cannot be had here: its rows are skipped", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(make())
