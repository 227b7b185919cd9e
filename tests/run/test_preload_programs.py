"""More programs under the preload library: image and table readers, writers, and awkward ones.

The first table has programs that only read, the second those that also write among the sources.
They run in two equal trees, which must be equal afterwards. The rest are programs that use
descriptors, processes, or system calls in a way that could upset the library.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from PIL import Image

from support.preload import run

PYTHON = sys.executable
# What a table counts only if an open of a copy failed.
FAILURES = ("open_failed", "other_copy", "number_failed")
# The same seed of str.__hash__, and the same commits.
SAME = {
    "PYTHONHASHSEED": "0",
    "GIT_AUTHOR_DATE": "@1700000000 +0000",
    "GIT_COMMITTER_DATE": "@1700000000 +0000",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def python(program):
    return [PYTHON, "-c", program]


def shell(*lines):
    return ["bash", "-c", "\n".join(lines)]


def make_tree(directory):
    """Make files that programs read and write."""
    directory.mkdir()
    random_bytes = random.Random(1).randbytes
    (directory / "a.bin").write_bytes(random_bytes(100_000))
    (directory / "b.txt").write_text("".join(f"line {number}\n" for number in range(2_000)))
    (directory / "below").mkdir()
    (directory / "below" / "c.bin").write_bytes(random_bytes(70_001))
    pixels = np.arange(40 * 30 * 3, dtype="uint8").reshape(30, 40, 3)
    Image.fromarray(pixels).save(directory / "image.png")
    Image.fromarray(pixels).save(directory / "image.jpeg")
    pd.DataFrame({"x": range(500), "y": [f"row {n}" for n in range(500)]}).to_csv(directory / "t.csv")
    table = pyarrow.table({"x": list(range(1_000)), "y": [f"row {n}" for n in range(1_000)]})
    pyarrow.parquet.write_table(table, directory / "t.parquet", row_group_size=100)
    with (
        pyarrow.OSFile(str(directory / "t.arrow"), "wb") as file,
        pyarrow.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    np.savez(directory / "arrays.npz", a=np.arange(500), b=np.ones(3))
    np.save(directory / "array.npy", np.arange(500))
    with h5py.File(directory / "set.h5", "w") as file:
        file.create_dataset("x", data=np.arange(500), maxshape=(None,), chunks=(50,))
    (directory / "text.gz").write_bytes(gzip.compress(b"compressed\n" * 999, mtime=0))
    with tarfile.open(directory / "files.tar", "w") as file:
        file.add(directory / "b.txt", "inside/b.txt")
    with lmdb.open(str(directory / "base.lmdb"), subdir=False) as base, base.begin(write=True) as write:
        for number in range(100):
            write.put(b"%08d" % number, random_bytes(100))
    (directory / "base.lmdb-lock").unlink()
    with contextlib.closing(sqlite3.connect(directory / "base.sqlite")) as base, base:
        base.execute("create table t(a, b)")
        base.executemany("insert into t values (?, ?)", [(n, "x" * n) for n in range(200)])
    with tarfile.open(directory / "repository.tar", "w") as file:
        repository = directory / "repository"
        repository.mkdir()
        (repository / "file").write_text("text\n" * 100)
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
        for words in (["init", "-q", "-b", "main"], ["add", "file"], ["commit", "-qm", "one"]):
            subprocess.run([*git, *words], check=True, env={**os.environ, **SAME})
        file.add(repository, "repository")
    (directory / "repository.tar").unlink()
    return directory


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("programs") / "data")


@pytest.fixture
def copies(make_copies, source):
    return make_copies(source)


READERS = {
    "CPython readers": python(
        "import gzip, tarfile, mmap, os, zlib, io\n"
        "print(len(gzip.open('text.gz').read()), tarfile.open('files.tar').extractfile('inside/b.txt').read(9))\n"
        "f = io.FileIO('a.bin'); b = bytearray(99); f.readinto(b); print(zlib.crc32(b), f.seek(0, 2))\n"
        "print(os.pread(f.fileno(), 9, 500), os.get_blocking(f.fileno()), f.read(), os.lseek(f.fileno(), 3, 0))\n"
        "m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY); m[0] = 7; print(zlib.crc32(m))"
    ),
    "CPython sendfile and copies": python(
        "import os, shutil, tempfile, zlib, pathlib\n"
        "d = pathlib.Path(tempfile.mkdtemp())\n"
        "shutil.copyfile('a.bin', d / 'a'); shutil.copytree('below', d / 'b')\n"
        "f = os.open('a.bin', 0); g = os.open(d / 'c', os.O_RDWR | os.O_CREAT)\n"
        "print(os.sendfile(g, f, 50, 5000), os.path.getsize(d / 'c'))\n"
        "print([zlib.crc32(p.read_bytes()) for p in sorted(d.rglob('*')) if p.is_file()]); shutil.rmtree(d)"
    ),
    "numpy": python(
        "import numpy as np; z = np.load('arrays.npz'); print(z['a'].sum(), z['b'], np.fromfile('a.bin', 'u2')[::999])"
    ),
    "h5py by file object": python(
        "import h5py\nwith open('set.h5', 'rb') as f, h5py.File(f, 'r') as h: print(h['x'][::50])"
    ),
    "pandas": python("import pandas as pd; t = pd.read_csv('t.csv'); print(t.describe(), t.y[77], len(t))"),
    "pandas of parquet": python(
        "import pandas as pd; t = pd.read_parquet('t.parquet', filters=[('x', '>', 500)])\n"
        "print(t.describe(), t.y.iloc[77], len(t)); print(pd.read_feather('t.arrow').x.sum())"
    ),
    "pyarrow": python(
        "import pyarrow as a, pyarrow.parquet as q, pyarrow.dataset as d\n"
        "print(q.read_table('t.parquet', columns=['x']).to_pydict()['x'][::99])\n"
        "print(q.ParquetFile('t.parquet').read_row_group(3).num_rows)\n"
        "print(d.dataset('t.parquet').to_table(filter=d.field('x') > 990).num_rows)\n"
        "print(a.ipc.open_file(a.memory_map('t.arrow')).read_all().slice(5, 2).to_pydict())\n"
        "print(q.read_table('t.parquet', memory_map=True).num_rows)"
    ),
    "Pillow": python(
        "from PIL import Image\nfor n in ('image.png', 'image.jpeg'):\n"
        "    i = Image.open(n); print(i.size, i.convert('L').tobytes()[:99]); i.close()"
    ),
    "sqlite3 of Python": python(
        "import sqlite3; base = sqlite3.connect('file:base.sqlite?mode=ro', uri=True)\n"
        "print(base.execute('select sum(a), max(b) from t').fetchall())"
    ),
    "webdataset": python(
        "import warnings; warnings.simplefilter('ignore'); import webdataset as w\n"
        "print([(s['__key__'], len(s['txt'])) for s in w.WebDataset('files.tar', shardshuffle=False)])"
    ),
    "tar with a dictionary of files": ["tar", "--sort=name", "-czf", "-", "a.bin", "below", "t.csv"],
    "gzip": ["gzip", "-dc", "text.gz"],
    "cp -r": shell(
        "d=$(mktemp -d); cp -r . $d; cd $d; find . -type f ! -path '*/.git/*' | sort | xargs sha256sum",
        "rm -r $d",
    ),
    "dd of parts": ["dd", "if=a.bin", "bs=1000", "skip=90", "status=none"],
    "grep and sort": shell(
        "grep -rl 'line 7' . | sort", "sort -R --random-source=a.bin b.txt | head -3", "tail -n2 b.txt"
    ),
    "git": ["git", "--no-optional-locks", "-C", "repository", "log", "-p", "--stat"],
    "find and xargs": shell("find . -name '*.bin' -print0 | xargs -0 -n1 -P2 md5sum | sort"),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_reader_is_the_same_with_and_without(name, copies):
    expected = run(READERS[name], cwd=copies.source, env={**os.environ, **SAME})
    assert expected[2] == 0
    assert copies.run(READERS[name], cwd=copies.source, env=SAME) == expected
    counters, _ = copies.counters()
    assert counters["opened"] >= 1
    assert not any(counters[reason] for reason in (*FAILURES, "changed", "writes"))


WRITERS = {
    "sqlite3 with a journal": [
        "sqlite3", "base.sqlite",
        "select count(*) from t; begin; update t set a = a + 1; rollback; select sum(a) from t;"
        "update t set b = b || 'y' where a < 50; select sum(length(b)) from t;",
    ],
    "sqlite3 with a write-ahead log": python(
        "import sqlite3; print(open('base.sqlite', 'rb').read(16))\n"
        "b = sqlite3.connect('base.sqlite'); print(b.execute('pragma journal_mode=wal').fetchall())\n"
        "c = sqlite3.connect('base.sqlite'); print(c.execute('select sum(a) from t').fetchall())\n"
        "b.execute('update t set a = 5'); b.commit(); print(c.execute('select sum(a) from t').fetchall())\n"
        "c.close(); print(b.execute('pragma journal_mode=delete').fetchall()); b.close()"
    ),
    "git index and commits": shell(
        "cd repository; git='git -c user.name=a -c user.email=a@b -c gc.auto=0'; cat file > other; echo more >> file",
        "$git status --short; $git add -A; $git status --short; $git commit -qm two; $git show --stat | cat",
        "$git checkout -q -b side HEAD~1; $git checkout -q main; $git fsck --strict; $git ls-files -s",
        "sha256sum file other",
    ),
    "CPython read and write": python(
        "import os; print([len(open(p, 'rb').read()) for p in ('a.bin', 'b.txt', 't.csv')])\n"
        "f = open('a.bin', 'r+b'); print(f.read(9)); f.seek(5); f.write(b'new'); f.flush()\n"
        "print(open('a.bin', 'rb').read(20)); open('b.txt', 'a').write('end'); print(open('b.txt').read()[-9:])\n"
        "os.truncate('b.txt', 50); print(os.stat('b.txt').st_size, open('b.txt').read())\n"
        "os.replace('t.csv', 'b.txt'); print(open('b.txt').read(20), os.path.exists('t.csv'))\n"
        "os.link('image.png', 'hard'); os.unlink('image.png'); print(len(open('hard', 'rb').read()))"
    ),
    "numpy memmap": python(
        "import numpy as np; m = np.load('array.npy', mmap_mode='r+'); print(m[9]); m[9] = 7; m.flush(); del m;"
        "print(np.load('array.npy')[8:11])"
    ),
    "h5py append": python(
        "import h5py\nwith h5py.File('set.h5', 'r') as f: print(f['x'][:5])\n"
        "with h5py.File('set.h5', 'a') as f: f['x'][3] = 99; f['x'].resize((600,))\n"
        "with h5py.File('set.h5', 'r') as f: print(f['x'][:5], f['x'].shape)"
    ),
    "py-lmdb write": python(
        "import lmdb, os\ndef read():\n    e = lmdb.open('base.lmdb', subdir=False, readonly=True, lock=False)\n"
        "    print(e.stat()['entries'], e.begin().get(b'key')); e.close()\n"
        "read(); e = lmdb.open('base.lmdb', subdir=False)\nwith e.begin(write=True) as t: t.put(b'key', b'value')\n"
        "e.close(); read(); os.unlink('base.lmdb-lock')"
    ),
    "pandas": python(
        "import pandas as pd; t = pd.read_csv('t.csv'); t['z'] = t.x * 2; t.to_csv('t.csv', index=False);"
        "print(pd.read_csv('t.csv').z.sum())"
    ),
    "Pillow": python(
        "from PIL import Image; i = Image.open('image.png'); i.rotate(90).save('image.png')\n"
        "print(Image.open('image.png').tobytes()[:40])"
    ),
    "tar over files": shell(
        "wc b.txt; mkdir inside; cp a.bin inside/b.txt", "tar xf files.tar --no-same-owner; cmp inside/b.txt b.txt"
    ),
    "dd into the middle": shell(
        "sha256sum a.bin; dd if=b.txt of=a.bin conv=notrunc seek=3 count=9 status=none; sha256sum a.bin"
    ),
    "sed and mv": shell(
        "head -n2 b.txt; sed -i s/line/row/ b.txt; head -n2 b.txt; mv a.bin b.txt; wc -c b.txt",
        "cp below/c.bin b.txt; cmp b.txt below/c.bin",
    ),
}  # fmt: skip


def contents(directory):
    """Return what a directory holds; the index of git also holds inodes and times."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, path.is_file() and path.read_bytes())
        for path in directory.rglob("*")
        if path.name != "index"
    }


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_is_the_same_with_and_without(name, make_copies, source, tmp_path):
    plain, served = tmp_path / "plain" / "data", tmp_path / "served" / "data"
    for tree in (plain, served):
        shutil.copytree(source, tree)
    copies = make_copies(served)
    expected = run(WRITERS[name], cwd=plain, env={**os.environ, **SAME})
    assert expected[2] == 0
    assert copies.run(WRITERS[name], cwd=served, env=SAME) == expected
    assert contents(served) == contents(plain)
    counters, _ = copies.counters()
    assert counters["opened"] >= 1
    assert not any(counters[reason] for reason in FAILURES)


AWKWARD = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void show(int file) {
    char bytes[9] = {0};
    ssize_t count = file < 0 ? -1 : read(file, bytes, 8);
    printf("%d %d %zd %s\n", file, file < 0 ? errno : 0, count, bytes);
    fflush(stdout);
}

static void wait_for(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    printf("%d\n", status);
    fflush(stdout);
}

static void spawn(char *const *environment) {
    posix_spawn_file_actions_t actions;
    char *words[] = {"cat", "-", "b.txt", NULL};
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "a.bin", O_RDONLY, 0);
    if (posix_spawnp(&child, "/bin/cat", &actions, NULL, words, environment) == 0) wait_for(child);
    posix_spawn_file_actions_destroy(&actions);
}

static void deny(long number) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void *opens(void *sum) {
    for (int turn = 0; turn < 200; turn++) {
        int file = open(turn % 2 ? "a.bin" : "b.txt", O_RDONLY);
        unsigned char byte;
        if (pread(file, &byte, 1, turn) == 1) *(long *)sum += byte * (turn + 1);
        if (close(file)) *(long *)sum += 1000000;
    }
    return NULL;
}

static int io_uring(void) {
    struct io_uring_params given = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &given);
    if (ring < 0) return 77;
    char *submitted = mmap(0, given.sq_off.array + 64, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *completed = mmap(0, given.cq_off.cqes + 256, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entry = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_OPENAT;
    entry->fd = AT_FDCWD;
    entry->addr = (unsigned long)"b.txt";
    entry->open_flags = O_RDONLY;
    *(unsigned *)(submitted + given.sq_off.array) = 0;
    *(volatile unsigned *)(submitted + given.sq_off.tail) = 1;
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) return 1;
    show(((struct io_uring_cqe *)(completed + given.cq_off.cqes))->res);
    return 0;
}

int main(int count, char **words) {
    const char *what = words[1];
    extern char **environ;
    show(open("b.txt", O_RDONLY));
    if (!strcmp(what, "posix_spawn")) {
        spawn(environ);
    } else if (!strcmp(what, "cleared environment")) {
        char *none[] = {NULL};
        spawn(none);
        clearenv();
        show(open("a.bin", O_RDONLY));
        spawn(environ);
    } else if (!strcmp(what, "vfork")) {
        pid_t child = vfork();
        if (child == 0) {
            int file = open("a.bin", O_RDONLY);
            dup2(file, 0);
            execl("/bin/cat", "cat", "-", "b.txt", NULL);
            _exit(9);
        }
        wait_for(child);
        show(open("a.bin", O_RDONLY));
    } else if (!strcmp(what, "O_PATH")) {
        int path = open("a.bin", O_PATH);
        char name[40];
        struct stat found;
        show(path);
        fstat(path, &found);
        printf("%ld %ld\n", (long)found.st_ino, (long)found.st_size);
        snprintf(name, sizeof name, "/proc/self/fd/%d", path);
        show(open(name, O_RDONLY));
        int directory = open(".", O_PATH);
        show(openat(directory, "a.bin", O_RDONLY));
    } else if (!strcmp(what, "fexecve")) {
        int file = open("program", O_RDONLY | O_CLOEXEC);
        char *given[] = {"program", "close_range", NULL};
        fexecve(file, given, environ);
        printf("%d\n", errno);
    } else if (!strcmp(what, "close_range")) {
        int first = open("a.bin", O_RDONLY);
        show(first);
        syscall(SYS_close_range, 3, ~0U, 0);
        show(first);
        show(open("a.bin", O_RDONLY));
        show(open("b.txt", O_RDONLY));
    } else if (!strcmp(what, "all closed")) {
        int kept = dup(1);
        for (int file = 0; file < 1024; file++) if (file != kept) close(file);
        int first = open("a.bin", O_RDONLY), second = open("b.txt", O_RDONLY);
        dup2(kept, 1000);
        dprintf(kept, "%d %d\n", first, second);
        char bytes[5];
        if (read(first, bytes, 5) == 5) write(kept, bytes, 5);
        return 0;
    } else if (!strcmp(what, "EMFILE")) {
        struct rlimit limit = {8, 8};
        setrlimit(RLIMIT_NOFILE, &limit);
        for (int turn = 0; turn < 10; turn++) show(open(turn % 2 ? "a.bin" : "b.txt", O_RDONLY));
        FILE *stream = fopen("a.bin", "r");
        printf("%d %d\n", stream != NULL, errno);
    } else if (!strcmp(what, "threads")) {
        pthread_t threads[16];
        long sums[16] = {0};
        for (int one = 0; one < 16; one++) pthread_create(threads + one, NULL, opens, sums + one);
        for (int one = 0; one < 16; one++) pthread_join(threads[one], NULL);
        for (int one = 0; one < 16; one++) printf("%ld\n", sums[one]);
    } else if (!strcmp(what, "seccomp")) {
        for (int one = 2; one < count; one++) deny(atol(words[one]));
        show(open("a.bin", O_RDONLY));
        FILE *stream = fopen("b.txt", "r");
        char line[20] = {0};
        printf("%d %s", stream != NULL, stream ? fgets(line, 20, stream) : "");
    } else if (!strcmp(what, "io_uring")) {
        return io_uring();
    } else if (!strcmp(what, "maps")) {
        int file = open("a.bin", O_RDONLY);
        char *map = mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, 0), line[4096], found[4096] = "";
        FILE *maps = fopen("/proc/self/maps", "r");
        while (fgets(line, sizeof line, maps)) {
            unsigned long begin, end;
            sscanf(line, "%lx-%lx %*s %*s %*s %*s %s", &begin, &end, found);
            if (begin <= (unsigned long)map && (unsigned long)map < end) break;
        }
        FILE *again = fopen(found, "r");
        char bytes[9];
        printf("%d %zu %d\n", again != NULL, fread(bytes, 1, 9, again), memcmp(bytes, map, 9));
        fprintf(stderr, "%s", found);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def awkward(tmp_path_factory, source):
    """A program with calls that could upset the library, and a copy of it among the sources."""
    directory = tmp_path_factory.mktemp("awkward")
    (directory / "program.c").write_text(AWKWARD)
    command = ["gcc", "-O1", "-w", "-pthread", "-o", directory / "program", directory / "program.c"]
    subprocess.run(command, check=True)
    shutil.copy(directory / "program", source / "program")
    return directory / "program"


@pytest.mark.parametrize(
    ("what", "opened"),
    [
        # What the C library opens for the child is the source.
        ("posix_spawn", 2),
        # The library is not in programs that get no environment.
        ("cleared environment", 2),
        ("vfork", 4),
        # Not what is opened as a path, but what is opened through it.
        ("O_PATH", 3),
        ("close_range", 4),
        ("all closed", 3),
        ("threads", 1 + 16 * 200),
        # Of an io_uring nothing is served.
        ("io_uring", 1),
    ],
)
def test_an_awkward_program_is_the_same_with_and_without(what, opened, awkward, copies):
    expected = run([awkward, what], cwd=copies.source)
    if what == "io_uring" and expected[2] == 77:
        pytest.skip("this kernel, or its settings, have no io_uring")
    assert expected[2] == 0
    assert copies.run([awkward, what], cwd=copies.source) == expected
    counters, _ = copies.counters()
    assert counters["opened"] == opened
    assert not any(counters[reason] for reason in FAILURES)


def test_a_copy_is_not_executed_through_its_descriptor(awkward, copies):
    """By its path, it is the source that runs."""
    assert run([awkward, "fexecve"], cwd=copies.source)[2] == 0
    output, _, status = copies.run([awkward, "fexecve"], cwd=copies.source)
    assert (int(output.splitlines()[-1]), status) == (errno.EACCES, 0)
    expected = run(["./program", "close_range"], cwd=copies.source)
    assert copies.run(["./program", "close_range"], cwd=copies.source) == expected


def test_a_program_out_of_descriptors_gets_the_source_for_its_last_one(awkward, copies):
    expected = run([awkward, "EMFILE"], cwd=copies.source)
    assert copies.run([awkward, "EMFILE"], cwd=copies.source) == expected
    counters, _ = copies.counters()
    # Of the descriptors 3 to 7, the last leaves none for the copy.
    assert (counters["opened"], counters["open_failed"]) == (4, 1)


# Numbers of system calls of x86-64.
@pytest.mark.parametrize("denied", [[437], [332], [332, 262], [5], [292], [33, 292], [436, 437, 439]])
def test_a_program_that_may_not_make_system_calls_reads_on(denied, awkward, copies):
    command = [awkward, "seccomp", *map(str, denied)]
    expected = run(command, cwd=copies.source)
    assert expected[2] == 0
    assert copies.run(command, cwd=copies.source) == expected
    counters, _ = copies.counters()
    assert counters["opened"] + counters["number_failed"] >= 1


def test_a_reader_of_its_own_maps_finds_the_copy(awkward, copies):
    plain, served = (begin([awkward, "maps"], cwd=copies.source) for begin in (run, copies.run))
    assert (served[0], served[2]) == (plain[0], plain[2]) == (plain[0], 0)
    assert plain[1].decode() == str(copies.source.resolve() / "a.bin")
    assert Path(served[1].decode()).parent == copies.level / "files"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_read_copies(method, copies, tmp_path):
    program = tmp_path / "workers.py"
    program.write_text(
        "import multiprocessing as m, zlib\ndef f(path): return zlib.crc32(open(path, 'rb').read())\n"
        "if __name__ == '__main__':\n"
        f"    with m.get_context('{method}').Pool(2) as pool:\n"
        "        print(pool.map(f, ['a.bin', 'below/c.bin', 'b.txt'] * 4)); pool.close(); pool.join()\n"
    )
    expected = run([PYTHON, program], cwd=copies.source)
    assert expected[2] == 0
    assert copies.run([PYTHON, program], cwd=copies.source) == expected
    assert copies.counters()[0]["opened"] == 12


GO = """
package main

import (
	"fmt"
	"hash/crc32"
	"os"
)
%s
func main() {
	for _, name := range os.Args[1:] {
		data, problem := os.ReadFile(name)
		fmt.Println(crc32.ChecksumIEEE(data), problem)
	}
	found, _ := os.Stat("a.bin")
	fmt.Println(found.Size(), found.ModTime().UnixNano())
	os.Exit(3)
}
"""


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
@pytest.mark.parametrize("linked", ["static", "dynamic"])
def test_a_go_program_is_unharmed(linked, copies, tmp_path):
    """Go makes its system calls itself: a dynamic program has the library, and is not served."""
    (tmp_path / "main.go").write_text(GO % ('import "C"' if linked == "dynamic" else ""))
    environment = {
        **os.environ,
        "CGO_ENABLED": "1" if linked == "dynamic" else "0",
        "GOFLAGS": "-mod=mod",
        "GO111MODULE": "off",
    }
    command = ["go", "build", "-o", tmp_path / "main", tmp_path / "main.go"]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    command = [tmp_path / "main", "a.bin", "b.txt", "missing"]
    expected = run(command, cwd=copies.source)
    assert expected[2] == 3
    assert copies.run(command, cwd=copies.source) == expected
    counters, _ = copies.counters()
    assert (counters["programs"], counters["opened"]) == (int(linked == "dynamic"), 0)


def test_a_library_that_audits_the_linker_changes_nothing(copies, tmp_path):
    (tmp_path / "audit.c").write_text("unsigned la_version(unsigned version) { return version; }")
    audit = tmp_path / "audit.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", audit, tmp_path / "audit.c"], check=True)
    command, environment = ["cat", "a.bin", "b.txt"], {"LD_AUDIT": str(audit)}
    expected = run(command, cwd=copies.source, env={**os.environ, **environment})
    assert copies.run(command, cwd=copies.source, env=environment) == expected
    assert copies.counters()[0]["opened"] == 2
