"""Programs under the preload library: the same output as without it, from copies."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest

from support import ROOT
from support.preload import run

PYTHON = sys.executable
# The libraries that a program may need for ours; the last is the loader.
ALLOWED_LIBRARIES = {"libc.so.6", "libdl.so.2", "ld-linux-x86-64.so.2"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Files of several kinds."""
    directory = tmp_path_factory.mktemp("preload") / "data"
    (directory / "below").mkdir(parents=True)
    random_bytes = random.Random(1).randbytes
    (directory / "a.bin").write_bytes(random_bytes(300_000))
    (directory / "b.txt").write_text("".join(f"line {number}\n" for number in range(5_000)))
    (directory / "below" / "c.bin").write_bytes(random_bytes(70_001))
    (directory / "empty").write_bytes(b"")
    np.save(directory / "array.npy", np.arange(10_000).reshape(100, 100))
    with h5py.File(directory / "set.h5", "w") as file:
        file["x"] = np.arange(5_000)
        file.create_dataset("y", data=np.arange(5_000), chunks=(100,), compression="gzip")
    with lmdb.open(str(directory / "base.lmdb"), subdir=False) as base, base.begin(write=True) as write:
        for number in range(500):
            write.put(b"%08d" % number, random_bytes(100))
    (directory / "base.lmdb-lock").unlink()
    with contextlib.closing(sqlite3.connect(directory / "base.sqlite")) as base, base:
        base.execute("create table t(a, b)")
        base.execute("insert into t values (1, 'x'), (2, 'y')")
    (directory / "link").symlink_to("a.bin")
    os.link(directory / "below" / "c.bin", directory / "hard")
    return directory


@pytest.fixture
def copies(make_copies, source):
    return make_copies(source)


def python(program):
    return [PYTHON, "-c", program]


STAT = """
import os
def show(s):
    print(s.st_mode, s.st_ino, s.st_dev, s.st_nlink, s.st_uid, s.st_gid, s.st_size, s.st_blocks,
          s.st_blksize, s.st_mtime_ns, s.st_ctime_ns)
"""
FORKED = """
import multiprocessing as m, zlib
def f(path): return zlib.crc32(open(path, 'rb').read())
pool = m.get_context('fork').Pool(2)
print(pool.map(f, ['a.bin', 'below/c.bin', 'b.txt'] * 5))
pool.close(); pool.join()
"""
PROGRAMS = {
    "python read": python("print(hash(open('a.bin', 'rb').read()[5:]) and open('b.txt').read()[-50:])"),
    "python mmap": python(
        "import mmap; f = open('a.bin', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=1); print(m[7:99])"
    ),
    "python sendfile": python(
        "import os, sys; f = os.open('a.bin', 0); print(os.sendfile(1, f, 0, 5000), file=sys.stderr)"
    ),
    "python shutil": python(
        "import shutil, os; shutil.copy2('a.bin', '/dev/shm/copy-of-a-test-%d' % os.getpid());"
        "print(os.stat('/dev/shm/copy-of-a-test-%d' % os.getpid()).st_mtime_ns);"
        "os.unlink('/dev/shm/copy-of-a-test-%d' % os.getpid())"
    ),
    "python preadv": python(
        "import os; f = os.open('a.bin', 0); b = bytearray(50); print(os.preadv(f, [b], 1000), b)"
    ),
    "python stat": python(
        STAT + "f = open('a.bin', 'rb'); show(os.fstat(f.fileno())); show(os.stat('a.bin'));"
        "show(os.stat('/proc/self/fd/%d' % f.fileno())); show(os.lstat('link'));"
        "print(os.path.sameopenfile(f.fileno(), os.open('link', 0)))"
    ),
    "python paths": python(
        STAT + "d = os.open('below', 0); here = os.getcwd()\n"
        "for p, at in [('a.bin', None), ('./a.bin', None), ('below/../a.bin', None), (here + '//a.bin', None),"
        "              ('link', None), ('hard', None), ('c.bin', d), ('../a.bin', d)]:\n"
        "    f = os.open(p, os.O_RDONLY, dir_fd=at); show(os.fstat(f)); print(os.read(f, 20), os.get_inheritable(f))\n"
        "os.chdir('below'); print(open('c.bin', 'rb').read(10)); os.fchdir(d); print(open('c.bin', 'rb').read(10))"
    ),
    "python flags": python(
        "import os, fcntl\n"
        "for flags in [0, os.O_NONBLOCK, os.O_NOFOLLOW, os.O_SYNC, os.O_NOATIME]:\n"
        "    f = os.open('a.bin', flags); print(fcntl.fcntl(f, fcntl.F_GETFL), fcntl.fcntl(f, fcntl.F_GETFD), f)\n"
        "for name, flags in [('missing', 0), ('below', os.O_WRONLY), ('link', os.O_NOFOLLOW), ('a.bin/x', 0)]:\n"
        "    try: os.open(name, flags)\n"
        "    except OSError as e: print(e.errno, e.filename)\n"
    ),
    "python all descriptors closed": python(
        "import os; os.closerange(3, 1000); f = open('a.bin', 'rb'); print(f.fileno(), f.read(9))"
    ),
    "python fork pool": python(FORKED),
    "python child": python(
        "import os, subprocess; f = os.open('a.bin', 0); os.read(f, 10);"
        "print(subprocess.run(['sh', '-c', 'dd bs=10 count=1 2>/dev/null; stat -L -c %i-%s-%Y /dev/stdin'],"
        "stdin=f, capture_output=True).stdout, os.read(f, 5))"
    ),
    "python empty environment": python(
        "import subprocess; print(open('a.bin', 'rb').read(5),"
        "subprocess.run(['/bin/cat', 'b.txt'], env={}, capture_output=True).stdout[-20:])"
    ),
    "numpy": python(
        "import numpy as np; print(np.load('array.npy').sum(), np.load('array.npy', mmap_mode='r')[5],"
        "np.fromfile('a.bin', 'u1').sum(), np.memmap('a.bin', 'u1', 'r')[:9])"
    ),
    "h5py": python(
        "import h5py\nwith h5py.File('set.h5', 'r') as f, h5py.File('set.h5', 'r') as g:"
        " print(f['x'][5:9], g['y'][::700], f == g)"
    ),
    "py-lmdb": python(
        "import lmdb\nfor lock in [False, True]:\n"
        "    e = lmdb.open('base.lmdb', subdir=False, readonly=True, lock=lock)\n"
        "    print(e.stat(), e.begin().get(b'00000077')); e.close()\n"
        "import os; os.path.exists('base.lmdb-lock') and os.unlink('base.lmdb-lock')"
    ),
    "cat": ["cat", "b.txt", "below/c.bin"],
    "dd": ["dd", "if=a.bin", "bs=7000", "skip=3", "count=5", "status=none"],
    "sha256sum": ["sha256sum", "a.bin", "b.txt", "below/c.bin", "link", "missing"],
    "tar": ["tar", "cf", "-", "a.bin", "b.txt", "below", "link", "hard", "--exclude=*lmdb*"],
    "cp": ["bash", "-c", "d=$(mktemp -d) && cp a.bin below/c.bin link $d && cat $d/*; rm -r $d"],
    "cp -p": [
        "bash",
        "-c",
        "d=$(mktemp -d) && cp -p a.bin b.txt $d && stat -c '%n %a %s %.9Y' $d/* | sed s:.*/::; rm -r $d",
    ],
    "cmp": ["cmp", "a.bin", "hard"],
    "wc": ["wc", "b.txt", "a.bin"],
    "bash redirection": [
        "bash",
        "-c",
        "while read -r a b; do c=$b; done < b.txt; echo $c; exec 5< a.bin; head -c 40 <&5",
    ],
    "sqlite3": ["sqlite3", "-readonly", "base.sqlite", "select * from t"],
    "stat": ["bash", "-c", "stat -L -c '%d %i %a %h %u %g %s %b %o %y %z %w' /dev/stdin < a.bin"],
    "node": [
        "node",
        "-e",
        (
            "const f=require('fs'), d=f.openSync('a.bin'); const s=f.fstatSync(d);"
            "console.log(s.ino, s.size, s.mtimeMs, f.readFileSync('b.txt').length)"
        ),
    ],
    "perl": ["perl", "-e", "open(F, '<', 'b.txt'); @s = stat F; print join(',', @s[0..7], @s[9..12]), <F>"],
    "Rust": ["{file_operations}", "read", "a.bin", "b.txt"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_the_same_with_and_without(name, copies, preload):
    command = [
        str(preload.file_operations) if word == "{file_operations}" else word for word in PROGRAMS[name]
    ]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    # The same seed of str.__hash__; warnings of no program may hide.
    same = {"PYTHONHASHSEED": "0"}
    expected = run(command, cwd=copies.source, env={**os.environ, **same})
    assert copies.run(command, cwd=copies.source, env=same) == expected
    counters, _ = copies.counters()
    assert counters["opened"] >= 1
    assert not any(counters[reason] for reason in ("open_failed", "other_copy", "number_failed", "changed"))


def test_git_reads_its_objects_from_copies(make_copies, tmp_path):
    directory = tmp_path / "repository"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(directory)]
    directory.mkdir()
    (directory / "file").write_text("text\n" * 100)
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "one"], ["gc", "-q"]):
        subprocess.run([*git, *words], check=True)
    (directory / "file").write_text("text\n" * 101)
    copies = make_copies(directory)
    for words in (["status", "--porcelain"], ["diff"], ["log", "-p"], ["fsck"]):
        expected = run([*git, "--no-optional-locks", *words])
        assert copies.run([*git, "--no-optional-locks", *words]) == expected
    assert copies.counters()[0]["opened"] >= 1


def test_without_a_table_a_program_runs_as_ever(preload, source, tmp_path):
    expected = run(["cat", "b.txt"], cwd=source)
    damaged = tmp_path / "table"
    damaged.write_bytes(b"FBFTABLE" + bytes(70_000))
    for table in ("", "/nonexistent", str(damaged), str(tmp_path), "/dev/zero"):
        assert run(["cat", "b.txt"], cwd=source, env=preload.environment(table)) == expected


def test_a_source_that_changed_is_read_itself_and_wished_for(make_copies, tmp_path):
    source = tmp_path / "data"
    source.mkdir()
    for name in "abc":
        (source / name).write_bytes(b"old")
    copies = make_copies(source, "--without", "c")
    (source / "a").write_bytes(b"new and longer")
    os.utime(source / "b", ns=(0, 0))
    program = (
        "import os; os.chdir('data'); print([open(p, 'rb').read() for p in ('a', 'b', os.getcwd() + '/c')])"
    )
    output, errors, _ = copies.run(python(program), cwd=tmp_path)
    assert (output, errors) == (b"[b'new and longer', b'old', b'old']\n", b"")
    counters, wishes = copies.counters()
    assert (counters["opened"], counters["changed"], counters["unknown"]) == (0, 2, 1)
    assert wishes == [str(source / name) for name in "abc"]


def test_who_writes_the_source_reads_it_afterwards(make_copies, tmp_path):
    source = tmp_path / "data"
    source.mkdir()
    (source / "a").write_bytes(b"old")
    copies = make_copies(source)
    program = (
        "import os; f = open('a', 'r+b'); r = open('a', 'rb'); f.write(b'new'); f.flush(); print(r.read());"
        "os.truncate('a', 1); print(open('a', 'rb').read())"
    )
    assert copies.run(python(program), cwd=source)[:2] == (b"b'new'\nb'n'\n", b"")
    counters, _ = copies.counters()
    # The mark stays; a file with another identity is not even looked for there.
    assert (counters["opened"], counters["writes"], counters["stale"], counters["changed"]) == (0, 2, 1, 1)


def test_nothing_is_changed_through_the_descriptor_of_a_copy(copies):
    program = (
        "import os, errno\nf = os.open('a.bin', 0)\n"
        "for change in (lambda: os.fchmod(f, 0o777), lambda: os.utime(f), lambda: os.chown(f, 0, 0),"
        "               lambda: os.open('/proc/self/fd/%d' % f, os.O_RDWR)):\n"
        "    try: change()\n    except OSError as e: print(errno.errorcode[e.errno])"
    )

    def times():
        return {
            path: path.stat().st_ctime_ns
            for path in [copies.source / "a.bin", *(copies.level / "files").iterdir()]
        }

    before = times()
    output, errors, _ = copies.run(python(program), cwd=copies.source)
    # Who may not write the copy is refused by the kernel.
    assert output.split()[:3] == [b"EROFS"] * 3
    assert output.split()[3] in (b"EROFS", b"EACCES")
    assert errors == b""
    assert times() == before


def test_a_process_without_free_descriptors_reads_the_source(copies):
    program = (
        "import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))\n"
        "try:\n    while True: f = os.open('/dev/null', 0)\n"
        "except OSError as e: os.close(f); g = os.open('a.bin', 0); print(e.errno, f, g, os.read(g, 10))"
    )
    expected = run(python(program), cwd=copies.source)
    assert copies.run(python(program), cwd=copies.source) == expected
    assert copies.counters()[0]["open_failed"] == 1


def test_a_level_that_went_away_leaves_the_source(copies):
    expected = run(["cat", "a.bin"], cwd=copies.source)
    shutil.rmtree(copies.level)
    assert copies.run(["cat", "a.bin"], cwd=copies.source) == expected
    assert copies.counters()[0]["open_failed"] == 1


def test_a_copy_that_was_replaced_is_not_served(copies):
    expected = run(["cat", "a.bin"], cwd=copies.source)
    for path in (copies.level / "files").iterdir():
        data = bytes(path.stat().st_size)
        path.unlink()
        path.write_bytes(data)
    assert copies.run(["cat", "a.bin"], cwd=copies.source) == expected
    assert copies.counters()[0]["other_copy"] == 1


def test_a_frozen_source_is_not_asked(make_copies, source, tmp_path):
    """The source is moved away: what is served by its path is still there."""
    place = tmp_path / "data"
    shutil.copytree(source, place)
    copies = make_copies(place, "--frozen")
    program = (
        STAT + f"p = '{place}/b.txt'; show(os.stat(p)); show(os.lstat(p)); print(open(p).read());"
        "import subprocess; print(os.access(p, os.R_OK), subprocess.check_output(['stat', '-c', '%n %d %i %s %y %w', p]));"
        # It opens files with fopen.
        "print(subprocess.check_output(['sha256sum', p]))"
    )
    expected = run(python(program))
    assert copies.run(python(program)) == expected
    place.rename(tmp_path / "moved")
    assert copies.run(python(program)) == expected
    assert copies.counters()[0]["frozen"] == 4


def test_a_path_that_the_program_removes_is_not_served_although_it_is_frozen(make_copies, tmp_path):
    source = tmp_path / "data"
    source.mkdir()
    for name in "ab":
        (source / name).write_text(name)
    copies = make_copies(source, "--frozen")
    program = f"import os; p = '{source}/'; os.rename(p + 'b', p + 'a'); print(open(p + 'a').read(), os.path.exists(p + 'b'))"
    assert copies.run(python(program)) == (b"b False\n", b"", 0)


def test_a_static_program_is_unharmed(copies, tmp_path):
    program = tmp_path / "static.c"
    program.write_text(
        '#include <fcntl.h>\n#include <unistd.h>\nint main() { char b[9]; int f = open("b.txt", 0);'
        "return write(1, b, read(f, b, 9)) != 9; }"
    )
    subprocess.run(["gcc", "-static", "-o", tmp_path / "static", program], check=True)
    assert copies.run([tmp_path / "static"], cwd=copies.source) == (b"line 0\nli", b"", 0)


def test_a_program_goes_on_with_the_table_that_replaces_its_own(make_copies, source):
    old, new = make_copies(source), make_copies(source)
    program = STAT + (
        "import subprocess\nf = open('a.bin', 'rb'); show(os.fstat(f.fileno()))\n"
        f"subprocess.run(['{old.preload.copy_files}', 'replace', '{old.table}', '{new.table}'], env={{}})\n"
        "g = open('b.txt'); print(os.readlink('/proc/self/fd/%d' % g.fileno()))\n"
        "for h in (f, g): show(os.fstat(h.fileno()))\nprint(os.path.sameopenfile(f.fileno(), os.open('a.bin', 0)))"
    )
    output, errors, _ = old.run(python(program), cwd=source)
    before, place, first, second, same = output.decode().splitlines()
    assert place.startswith(str(new.level))
    assert (first, same, errors) == (before, "True", b"")
    found = (source / "b.txt").stat()
    assert second.split()[1:3] == [str(found.st_ino), str(found.st_dev)]


OTHER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int open(const char *name, int flags, ...) {
    return ((int (*)(const char *, int, int))dlsym(RTLD_NEXT, "open"))(name, flags, 0);
}
__attribute__((constructor)) static void begin(void) {
    char bytes[6] = {0};
    int file = open("b.txt", O_RDONLY);
    if (read(file, bytes, 5) == 5) fprintf(stderr, "%s\\n", bytes);
    close(file);
}
"""


@pytest.mark.parametrize("first", ["ours", "other"])
def test_another_preloaded_library_works_in_either_order(first, copies, tmp_path):
    (tmp_path / "other.c").write_text(OTHER)
    other = tmp_path / "other.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", other, tmp_path / "other.c"], check=True)
    names = [str(copies.preload.library), str(other)]
    together = ":".join(names if first == "ours" else reversed(names))
    command = ["cat", "b.txt", "a.bin"]
    expected = run(command, cwd=copies.source, env={**os.environ, "LD_PRELOAD": str(other)})
    assert expected[1] == b"line \n"
    assert copies.run(command, cwd=copies.source, env={"LD_PRELOAD": together}) == expected
    # Two files of the program, and that of the other library's constructor.
    assert copies.counters()[0]["opened"] == 3


INVALID = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main() {
    volatile long one = 1;
    struct stat found;
    const char *name = (const char *)one;
    int results[] = {open(name, O_RDONLY), stat(name, &found), access(name, 0), truncate(name, 0), rename(name, name)};
    for (int i = 0; i < 5; i++) printf("%d\\n", results[i]);
    printf("%d\\n", errno);
    return 0;
}
"""


def test_an_address_that_is_none_is_an_error_of_the_call(copies, tmp_path):
    (tmp_path / "c.c").write_text(INVALID)
    subprocess.run(["gcc", "-w", "-o", tmp_path / "c", tmp_path / "c.c"], check=True)
    expected = run([tmp_path / "c"])
    assert expected[2] == 0
    assert copies.run([tmp_path / "c"]) == expected


CANCELLED = """
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
static void *blocked(void *name) { open(name, O_RDONLY); return 0; }
int main(int count, char **names) {
    pthread_t thread;
    void *result;
    (void)count;
    mkfifo(names[1], 0600);
    pthread_create(&thread, 0, blocked, names[1]);
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    puts(result == PTHREAD_CANCELED ? "cancelled" : "returned");
    FILE *stream = fopen(names[2], "r");
    char line[20];
    return stream && fgets(line, sizeof line, stream) ? !fputs(line, stdout) : 1;
}
"""


def test_a_thread_is_cancelled_in_an_open_that_blocks(copies, tmp_path):
    (tmp_path / "c.c").write_text(CANCELLED)
    subprocess.run(["gcc", "-O1", "-pthread", "-o", tmp_path / "c", tmp_path / "c.c"], check=True)
    done = copies.run([tmp_path / "c", tmp_path / "fifo", copies.source / "b.txt"])
    assert done[:2] == (b"cancelled\nline 0\n", b"")
    assert copies.counters()[0]["opened"] == 1


def dynamic_entries(path):
    lines = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\((\w+)\)\s+(.*)", lines)


def versions(path):
    """Return the highest version of libc's symbols that a library needs."""
    lines = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
    return max(tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", lines))


def test_the_library_needs_libc_alone_and_comes_first(preload):
    entries = dynamic_entries(preload.library)
    needed = {re.search(r"\[(.*)\]", value).group(1) for name, value in entries if name == "NEEDED"}
    assert needed <= ALLOWED_LIBRARIES
    assert any(name == "FLAGS_1" and "INITFIRST" in value for name, value in entries)
    native = ROOT / "python/forebay/_native.abi3.so"
    assert versions(preload.library) <= versions(native)


def test_the_library_has_no_thread_local_memory(preload):
    relocations = subprocess.run(
        ["readelf", "-rW", preload.library], capture_output=True, text=True, check=True
    )
    assert not re.search(r"DTPMOD|DTPOFF|TPOFF|TLSDESC", relocations.stdout)
    segments = subprocess.run(["readelf", "-lW", preload.library], capture_output=True, text=True, check=True)
    assert not re.search(r"^\s+TLS\s", segments.stdout, flags=re.MULTILINE)


def test_the_library_exports_only_what_it_replaces(preload):
    lines = subprocess.run(
        ["readelf", "--dyn-syms", "-W", preload.library], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in lines.stdout.splitlines() if re.match(r"\s*\d+:", line)]
    exported = {row[7] for row in rows if row[6] != "UND" and row[4] in ("GLOBAL", "WEAK")}
    libc = subprocess.run(["ldd", sys.executable], capture_output=True, text=True, check=True).stdout
    path = re.search(r"libc\.so\.6 => (\S+)", libc).group(1)
    known = subprocess.run(
        ["readelf", "--dyn-syms", "-W", path], capture_output=True, text=True, check=True
    ).stdout
    names = set(re.findall(r"\s(\w+)@", known))
    assert exported <= names
    assert {"open", "openat64", "fopen", "fstat", "__fxstat64", "statx", "syscall"} <= exported


def test_the_library_is_small_enough_to_be_in_every_process(preload):
    assert Path(preload.library).stat().st_size < 100_000
    assert struct.calcsize("P") == 8
