"""Runs a program as a container runs it: in a root directory of its own, with mounts, a user, and a network namespace.

Needs root and util-linux. Mounts are in a mount namespace of the program, so nothing is left mounted. The program is
process 1 of a process namespace: when it dies, its children die.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runtime.child_process import tie_to_parent

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of this machine, seen at `target` inside."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A program's surroundings. `user` is `uid:gid`; `scratch` are directories in memory, empty at the start."""

    root: Path
    environment: Mapping[str, str]
    user: str = "0:0"
    directory: str = "/"
    mounts: tuple[Mount, ...] = ()
    scratch: tuple[str, ...] = ()
    read_only: bool = False
    drops_capabilities: bool = False
    open_files: int = 0
    network: str = ""
    """The name of a network namespace. Empty: that of the caller."""

    def start(self, words: Sequence[str], output: IO[str]) -> "Running":
        """Start a program; it writes to `output`."""
        for mount in self.mounts:
            _make_target(self.root / mount.target.lstrip("/"), is_directory=mount.source.is_dir())
        enter = [_found("nsenter"), f"--net=/run/netns/{self.network}"] if self.network else []
        isolate = [_found("unshare"), "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-euc", self._script()]
        process = subprocess.Popen(
            [*enter, *isolate, "sh", *words],
            env={"PATH": PATH, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            preexec_fn=tie_to_parent(),  # noqa: PLW1509
        )
        return Running(self, process)

    def _script(self) -> str:
        """Mount what is to be mounted, then become the program."""
        root = shlex.quote(str(self.root))
        return f"inside=$PATH PATH={PATH}\n" + "\n".join(
            (
                *self._bounds(),
                f"mount --bind {root} {root}",
                f"mount -t proc proc {root}/proc",
                *(f"mount -t tmpfs -o mode=1777 tmpfs {root}{place}" for place in ("/dev/shm", *self.scratch)),
                *(self._bind(mount) for mount in self.mounts),
                *([f"mount -o remount,bind,ro {root}"] if self.read_only else []),
                f'exec chroot {root} {shlex.join(self.as_user())} env PATH="$inside" '
                f'sh -c \'cd "$0" && exec "$@"\' {shlex.quote(self.directory)} "$@"',
            )
        )

    def _bounds(self) -> list[str]:
        """Limit open files as far as possible: a machine that is a container itself may allow less."""
        return [f'ulimit -n {self.open_files} || echo "open files: at most $(ulimit -Hn)"'] if self.open_files else []

    def _bind(self, mount: Mount) -> str:
        target = shlex.quote(str(self.root) + mount.target)
        bind = f"mount --bind {shlex.quote(str(mount.source))} {target}"
        return f"{bind}\nmount -o remount,bind,ro {target}" if mount.read_only else bind

    def as_user(self) -> list[str]:
        """A change of user clears the death signal of `--kill-child`, so it is set again."""
        uid, _, gid = self.user.partition(":")
        dropped = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if self.drops_capabilities else []
        return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--pdeathsig=KILL", *dropped]


@dataclass(frozen=True, slots=True)
class Running:
    """A started program."""

    sandbox: Sandbox
    process: subprocess.Popen[str]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program, as its container's engine does."""
        os.kill(self._pid(), number)

    def kill(self) -> None:
        """End the program and all its children at once. Does nothing if it has ended."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run another program beside it, as `docker exec` does. Its output is captured."""
        enter = [_found("nsenter"), f"--target={self._pid()}", "--mount", "--net", "--pid", "--root", "--wd"]
        return subprocess.run(
            [*enter, *self.sandbox.as_user(), *words],
            env={"PATH": PATH, **self.sandbox.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _pid(self) -> int:
        """The program's process id. The process that was started only waits for it."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])


def user_of(root: Path, name: str) -> str:
    """`uid:gid` of a user by name or number, as the passwd file in `root` has it; of a number alone, the same group."""
    for line in (root / "etc/passwd").read_text().splitlines():
        entry, _, uid, gid = line.split(":")[:4]
        if name in (entry, uid):
            return f"{uid}:{gid}"
    return f"{int(name)}:{int(name)}"


def _make_target(target: Path, *, is_directory: bool) -> None:
    """A mount needs something to be mounted on."""
    if is_directory:
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(f"{program} is not installed: apt-get install util-linux")
    return path
