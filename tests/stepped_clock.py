"""A wall clock that a test can step, for the whole product: a preloaded library adds the offset in a file.

Only `CLOCK_REALTIME` moves, as when an operator or NTP sets the clock. Monotonic clocks do not.
"""

import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t zero, *offset_s = &zero;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("STEPPED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) offset_s = found;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (!real_clock_gettime) begin();
    int failed = real_clock_gettime(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}
"""
DAY_S = 86_400
COMPILER = shutil.which("cc") or shutil.which("gcc")
MISSING = "no C compiler for the stepped clock (Debian: apt-get install gcc libc6-dev)"


class SteppedClock:
    """Start the product with `environment`. `step` sets its clock forward or back."""

    def __init__(self, directory: Path) -> None:
        assert COMPILER is not None, MISSING
        source, library, self._file = (directory / name for name in ("clock.c", "clock.so", "clock.offset"))
        source.write_text(_SOURCE)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, timeout=60)
        self._file.write_bytes(bytes(mmap.PAGESIZE))
        self.offset_s = 0
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}

    def of_redis_alone(self, binary: str) -> dict[str, str]:
        """Settings of a product whose Redis has this clock, and nothing else."""
        shims = self._file.parent / "bin"
        shims.mkdir()
        shim = shims / "redis-server"
        assignments = " ".join(f"{name}={value}" for name, value in self.environment.items())
        shim.write_text(f'#!/bin/sh\nexec env {assignments} {binary} "$@"\n')
        shim.chmod(0o755)
        return {"PATH": f"{shims}:{os.environ['PATH']}"}

    @property
    def now_s(self) -> float:
        """The time that it shows."""
        return time.time() + self.offset_s

    def keep_from_midnight(self, for_s: int) -> None:
        """Begin the next UTC day if this one ends within the time: a day's counters end with it."""
        left_s = DAY_S - int(self.now_s) % DAY_S
        if left_s <= for_s:
            self.step(left_s)

    def step(self, seconds: int) -> None:
        self.offset_s += seconds
        with self._file.open("r+b") as file:
            file.write(struct.pack("<q", self.offset_s))
