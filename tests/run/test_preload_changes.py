"""A copy is never changed through what programs have of it; other changes are noticed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import support
from support.preload import run
from support.run_session import run_with_tier
from support.tiering import settle

FILES, FILE_BYTES = 4, 10_000

# Each call on a copy, by its descriptor and by the path of that: what it returned, and its error.
CHANGES = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>
static void show(const char *what, int result) { printf("%s %d %s\n", what, result, result < 0 ? strerrorname_np(errno) : ""); }
#define CHANGE(call) (errno = 0, show(#call, (call)))
int main(void) {
    int f = open("a", O_RDONLY), beside = open("a", O_RDONLY);
    char p[40], q[40];
    sprintf(p, "/proc/self/fd/%d", f);
    sprintf(q, "/dev/fd/%d", f);
    FILE *stream = fdopen(beside, "r");
    struct timeval times[2] = {{1, 1}, {1, 1}};
    CHANGE(open(p, O_RDWR));
    CHANGE(open(q, O_WRONLY | O_TRUNC));
    CHANGE(open64(p, O_RDONLY | O_TRUNC));
    CHANGE(openat(AT_FDCWD, p, O_RDWR | O_TRUNC | O_CREAT, 0600));
    CHANGE(creat(p, 0600));
    CHANGE((int)syscall(SYS_openat, AT_FDCWD, p, O_RDWR | O_TRUNC));
    CHANGE(fopen(p, "w") ? 0 : -1);
    CHANGE(fopen(q, "r+") ? 0 : -1);
    CHANGE(fopen(p, "a") ? 0 : -1);
    CHANGE(freopen(NULL, "r+", stream) ? 0 : -1);
    CHANGE(freopen(p, "w", fopen("a", "r")) ? 0 : -1);
    CHANGE(truncate(p, 0));
    CHANGE(ftruncate(f, 0));
    CHANGE(fchmod(f, 0600));
    CHANGE(chmod(p, 0600));
    CHANGE(fchmodat(AT_FDCWD, p, 0600, 0));
    CHANGE(fchown(f, 1, 1));
    CHANGE(chown(p, 1, 1));
    CHANGE(fchownat(f, "", 1, 1, AT_EMPTY_PATH));
    CHANGE(futimes(f, times));
    CHANGE(utimes(p, times));
    CHANGE(futimens(f, NULL));
    CHANGE(utimensat(AT_FDCWD, p, NULL, 0));
    CHANGE(utimensat(f, "", NULL, AT_EMPTY_PATH));
    CHANGE(futimesat(f, NULL, times));
    CHANGE(utime(p, NULL));
    CHANGE(fsetxattr(f, "user.x", "1", 1, 0));
    CHANGE(setxattr(p, "user.x", "1", 1, 0));
    CHANGE(fremovexattr(f, "user.x"));
    CHANGE(removexattr(p, "user.x"));
    return 0;
}
"""

# Does what the kernel alone can refuse: without libc's functions, on a descriptor that it inherits.
STATIC = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
    int file = open("/proc/self/fd/0", O_WRONLY | O_TRUNC);
    if (file >= 0) write(file, "wrong", 5);
    truncate("/proc/self/fd/0", 3);
    fchmod(0, 0666);
    return 0;
}
"""


def compile_program(directory, text, *options):
    (directory / "program.c").write_text(text)
    command = ["gcc", "-w", *options, "-o", directory / "program", directory / "program.c"]
    subprocess.run(command, check=True)
    return directory / "program"


def test_no_call_changes_a_copy(make_copies, tmp_path):
    source = tmp_path / "data"
    source.mkdir()
    (source / "a").write_bytes(b"right")
    copies = make_copies(source)

    def states():
        files = [source / "a", *(copies.level / "files").iterdir()]
        return [(path.read_bytes(), path.stat().st_mode, path.stat().st_ctime_ns) for path in files]

    before = states()
    program = compile_program(tmp_path, CHANGES)
    output, errors, status = copies.run([program], cwd=source)
    assert (errors, status) == (b"", 0)
    results = [line.rsplit(" ", 2) for line in output.decode().splitlines()]
    assert len(results) == 30
    for call, result, error in results:
        # The kernel says of a descriptor that only reads that it does, and of a user who may not.
        allowed = {"EINVAL"} if call.startswith("ftruncate") else {"EROFS", "EACCES"}
        assert (result, error in allowed) == ("-1", True), (call, result, error)
    assert states() == before
    assert copies.counters()[0]["refused_changes"] > 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files that are old enough to be copied."""
    directory = tmp_path_factory.mktemp("changes") / "data"
    directory.mkdir()
    for number in range(FILES):
        (directory / f"{number}").write_bytes(bytes([number]) * FILE_BYTES)
    settle([directory])
    return directory


@pytest.fixture
def job(daemon, data, tmp_path, monkeypatch):
    """Run a program under `forebay run`; return its output and the JSON of the run."""
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    tier = tmp_path / "tier"
    tier.mkdir()

    def begin(*command, **more):
        return run_with_tier(tier, data, *command, **more)

    begin.copies = tier / f"forebay-{os.geteuid()}" / "v1" / "files"
    return begin


READ = ["sh", "-c", "cat 0 1 2 3 | sha256sum; stat -c '%a %s %Y' ?"]


def test_a_program_without_the_library_does_not_change_the_copy_that_it_inherits(job, tmp_path, data):
    right = run(READ, cwd=data)[0]
    program = compile_program(tmp_path, STATIC, "-static")
    _, found = job("sh", "-c", f"for file in ?; do {program} < $file; done", options=["--stage"])
    assert found["opens_served"] == FILES
    output, found = job(*READ)
    assert (output, found["opens_served"]) == (right, FILES)


def test_a_copy_that_was_changed_is_not_served_to_the_next_job(job, data):
    """The daemon lives on, and the size and modification time of the copy are what they were."""
    right = run(READ, cwd=data)[0]
    job("true", options=["--stage"])
    changed = min(job.copies.iterdir())
    times = changed.stat()
    changed.chmod(0o600)
    with changed.open("r+b") as copy:
        copy.write(b"wrong")
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed.chmod(0o400)
    output, found = job(*READ)
    assert (output, found["opens_served"]) == (right, FILES - 1)
    support.wait_until(lambda: not changed.exists(), "the copy to be deleted")


def test_a_copy_that_is_right_is_served_although_its_times_changed(job, data):
    job("true", options=["--stage"])
    touched = min(job.copies.iterdir())
    touched.chmod(0o666)
    right = run(READ, cwd=data)[0]
    support.wait_until(lambda: job(*READ)[1]["opens_served"] == FILES, "the copy to be compared")
    assert (job(*READ)[0], touched.stat().st_mode & 0o777) == (right, 0o400)


DELETED = """
import os, sys
file = os.open("1", os.O_RDONLY)
before = os.fstat(file)
for name in os.listdir(sys.argv[1]):
    os.unlink(os.path.join(sys.argv[1], name))
after = os.fstat(file)
print(before == after, after.st_nlink, os.stat(f"/proc/self/fd/{file}") == before, len(os.read(file, 99999)))
"""


def test_fstat_of_a_copy_that_is_deleted_while_it_is_open_stays_that_of_the_source(job, data):
    output, found = job(sys.executable, "-c", DELETED, job.copies, options=["--stage"])
    assert (output, found["opens_served"]) == (f"True 1 True {FILE_BYTES}\n".encode(), 1)
