"""`forebay run` in odd surroundings: clocks, names, addresses and filters of system calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.preload import run
from support.tiering import settle

SIZE = 5000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A directory whose name is not UTF-8, with a file that is old enough to be copied."""
    directory = tmp_path_factory.mktemp("odd") / os.fsdecode(b"d\xff")
    directory.mkdir()
    (directory / "a").write_bytes(b"x" * SIZE)
    settle([directory])
    return directory


@pytest.fixture
def job(daemon, data, tmp_path):
    """Run a program under `forebay run`; return its output and the JSON of the run."""
    tier, summary = tmp_path / "tier", tmp_path / "summary.json"
    tier.mkdir()

    def begin(*command, options=("--stage",), environment=None):
        words = ["run", "--tier", f"{tier}:64MiB", "--source", data, "--json", summary, *options, "--"]
        whole = [sys.executable, "-m", "forebay", *words, *command]
        done = run(whole, cwd=data, env={**os.environ, **(environment or {})})
        assert done[2] == 0, done[1]
        return done[0].decode(), json.loads(summary.read_text())["run"]

    return begin


def compile_program(directory, text, *options):
    (directory / "program.c").write_text(text)
    command = ["gcc", "-w", "-O1", *options, "-o", directory / "program", directory / "program.c"]
    subprocess.run(command, check=True)
    return directory / "program"


def test_a_source_whose_name_is_not_utf_8_is_served(job, data):
    output, found = job("cat", "a")
    assert (output, found["opens_served"]) == ("x" * SIZE, 1)
    output, found = job("cat", data / "a", options=["--frozen"])
    assert (output, found["opens_served"]) == ("x" * SIZE, 1)


# A clock that stands still, as libfaketime makes it.
CLOCK = """
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) { now->tv_sec = 1577836800; now->tv_nsec = 0; return 0; }
int gettimeofday(struct timeval *now, void *zone) { now->tv_sec = 1577836800; now->tv_usec = 0; return 0; }
time_t time(time_t *now) { return now ? *now = 1577836800 : 1577836800; }
"""


def test_a_clock_that_stands_still_is_that_of_the_program_alone(job, tmp_path):
    clock = compile_program(tmp_path, CLOCK, "-shared", "-fPIC")
    program = (
        "import os, time; print(int(time.time()), len(open('a').read()), os.environ['LD_PRELOAD'].split()[0])"
    )
    command = [sys.executable, "-c", program]
    output, found = job(*command, environment={"LD_PRELOAD": str(clock)})
    assert (output, found["opens_served"]) == (f"1577836800 {SIZE} {clock}\n", 1)


# What calls with addresses that are none return, and their errors.
INVALID = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define SHOW(call) (errno = 0, printf("%d ", (int)(call)), printf("%d\n", errno))
int main(int count, char **words) {
    volatile long one = 1;
    char *none = (char *)one, *name = words[1];
    struct stat found = {0};
    // A path that ends with its page, and one that has no end there.
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 4096, 4096);
    char *last = pages + 4096 - strlen(name) - 1;
    strcpy(last, name);
    SHOW(stat(none, &found)); SHOW(stat(0, &found)); SHOW(lstat(none, &found));
    SHOW(open(none, O_RDONLY)); SHOW(openat(AT_FDCWD, none, O_RDONLY)); SHOW(access(none, R_OK));
    SHOW(fopen(none, "r") != 0);
    SHOW(stat(name, (struct stat *)none)); SHOW(stat(name, 0)); SHOW(statx(AT_FDCWD, none, 0, STATX_ALL, none));
    SHOW(statx(AT_FDCWD, name, 0, STATX_ALL, none));
    SHOW(stat(name, (struct stat *)(pages + 4096 - 16)));
    strcpy(last, name);  // the kernel wrote as much as there was room for
    SHOW(stat(last, &found)); SHOW(found.st_size);
    memset(pages + 4000, '/', 96);
    SHOW(stat(pages + 4000, &found)); SHOW(open(pages + 4000, O_RDONLY));
    SHOW(stat(name, &found)); SHOW(found.st_size); SHOW(open(name, O_RDONLY) > 0);
    return 0;
}
"""


def test_an_address_that_is_none_is_an_error_although_the_source_is_frozen(job, data, tmp_path):
    program = compile_program(tmp_path, INVALID)
    expected = run([program, data / "a"])
    assert (expected[2], expected[0].count(b"-1 14") > 10) == (0, True)
    output, found = job(program, data / "a", options=["--stage", "--frozen"])
    assert (output, found["counters"]["frozen"]) == (expected[0].decode(), 1)


# Forbids what a program that opens, looks and reads does not need, as strict filters do: such a
# call ends it. Then it opens the source, or starts another program.
STRICT = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static int denied[] = {SYS_dup3, SYS_readlinkat, SYS_getpid, SYS_geteuid};
int main(int count, char **words) {
    if (!strcmp(words[1], "read")) {
        char bytes[99];
        int file = open("a", O_RDONLY);
        struct stat found;
        fstat(file, &found);
        printf("%zd %ld\n", read(file, bytes, 99), (long)found.st_size);
        return 0;
    }
    struct sock_filter filter[20];
    int length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
    for (int one = 0; one < 4; one++) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denied[one], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int result = !strcmp(words[2], "prctl") ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
                                            : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    if (result) return 9;
    if (count > 3) return execvp(words[3], words + 3);
    char *again[] = {words[0], "read", 0};
    if (!strcmp(words[1], "exec")) return execv(words[0], again);
    words[1] = "read";
    return main(2, words);
}
"""


@pytest.mark.parametrize("by", ["prctl", "syscall"])
@pytest.mark.parametrize("what", ["open", "exec"])
def test_a_program_that_forbids_itself_system_calls_reads_the_source(what, by, job, tmp_path):
    program = compile_program(tmp_path, STRICT)
    if run([program, what, by], cwd=tmp_path)[2] == 9:
        pytest.skip("no seccomp here")
    output, found = job(program, what, by)
    assert (output, found["opens_served"]) == (f"99 {SIZE}\n", 0)
    output, found = job(program, "read")
    assert (output, found["opens_served"]) == (f"99 {SIZE}\n", 1)


def test_a_filter_around_the_whole_run_does_not_keep_it_from_serving(job, data, tmp_path):
    """As that of most containers; it forbids nothing that is used here."""
    forbidden = "SYS_dup3, SYS_readlinkat, SYS_getpid, SYS_geteuid"
    program = compile_program(
        tmp_path, STRICT.replace(forbidden, "SYS_reboot, SYS_acct, SYS_swapon, SYS_swapoff")
    )
    summary, tier = tmp_path / "filtered.json", tmp_path / "filtered"
    tier.mkdir()
    options = ["--tier", f"{tier}:64MiB", "--source", data, "--stage", "--json", summary]
    words = [sys.executable, "-m", "forebay", "run", *options, "--", "cat", "a"]
    done = run([program, "exec", "prctl", *words], cwd=data)
    if done[2] == 9:
        pytest.skip("no seccomp here")
    assert done[0] == b"x" * SIZE
    assert json.loads(summary.read_text())["run"]["opens_served"] == 1
