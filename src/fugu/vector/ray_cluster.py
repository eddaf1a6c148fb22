"""Ray, as it is joined and left: imported when it is first needed, started on this machine alone unless an address is given.

In: an address, or none, and how many nodes are wanted. Out: the module ``ray``, and the machine that each node goes to. A cluster that
was started here ends with its last user; one that was joined, or that the caller had joined already, is left as it was.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.errors import ConfigError, FuguError, MissingExtra, NotInstalled

OLDEST = (2, 40)
"""version of Ray from which this works"""
FEATURE = "Ray (backend ray, --rollout.nodes, fugu cluster)"

GONE_S = 1.0
"""how long an actor may take to end"""

_lock = threading.Lock()
_users = 0
"""users of a cluster that was started or joined here"""
_joined: str | None = None
"""its address"""


class ClusterError(FuguError, RuntimeError):
    """The Ray cluster cannot be started or joined, or has not enough machines."""


@dataclass(frozen=True)
class Place:
    """A machine for one node."""

    ident: str
    """Ray's name of the machine"""
    address: str
    sharing: int
    """nodes on this machine, this one included"""


class Cluster:
    """A cluster in use, until ``leave``."""

    def __init__(self, address: str | None, nodes: int = 1) -> None:
        self.ray = imported()
        self._left = _join(self.ray, address, nodes)

    def places(self, nodes: int | None) -> list[Place]:
        """Return a machine for each of ``nodes`` nodes, in turn; None: one for each machine. They are the same whenever the same
        machines are there."""
        alive = sorted((each["NodeManagerAddress"], each["NodeID"]) for each in self.ray.nodes() if each["Alive"])
        if not alive:
            raise ClusterError("no machine of the Ray cluster is alive; see `ray status`")
        count = nodes or len(alive)
        chosen = [alive[i % len(alive)] for i in range(count)]
        return [Place(ident, address, chosen.count((address, ident))) for address, ident in chosen]

    def start(self, kind: type, place: Place, *arguments: Any) -> Any:
        """Start an actor of ``kind`` there, or elsewhere if that machine is gone. It is not restarted by Ray: whoever uses it does."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node_id=place.ident, soft=True)
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": where}
        return self.ray.remote(kind).options(**options).remote(*arguments)

    def end(self, actors: Sequence[tuple[Any, Place, int | None]], *, lost: bool = False) -> None:
        """End actors, each on its machine, with its process if that is known, for certain: also one that is stopped by a signal. On
        another machine that takes a process there, so only what was ``lost`` is looked after."""
        for actor, _, _ in actors:
            with contextlib.suppress(Exception):
                self.ray.kill(actor)
        with contextlib.suppress(Exception):
            own = self.ray.get_runtime_context().get_node_id()
            here = [pid for _, place, pid in actors if pid is not None and place.ident == own]
            kill_actors(here)
            for _, place, pid in actors if lost else ():
                if pid is not None and place.ident != own:
                    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

                    where = NodeAffinitySchedulingStrategy(node_id=place.ident, soft=False)
                    self.ray.remote(kill_actors).options(num_cpus=0, max_retries=0, scheduling_strategy=where).remote([pid])

    def leave(self) -> None:
        """End the cluster if it was started here and this is its last user. Safe to call twice."""
        if not self._left:
            self._left = True
            _leave(self.ray)


def imported() -> Any:
    """Return the module ``ray``; if it is missing or too old, say what to type."""
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")):
        os.environ.setdefault(name, value)  # no reports to anyone, and no notice of what changes in Ray
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(FEATURE, "ray") from error
    found = tuple(int(part) for part in ray.__version__.split(".")[:2] if part.isdigit())
    if found < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise NotInstalled(f'Ray {ray.__version__} is too old, {wanted} is needed: pip install -U "fugu-rl[ray]"')
    return ray


def kill_actors(pids: Sequence[int]) -> None:
    """Wait a moment for the processes of actors to end, then kill them. Ray tells everybody of one that is killed too early."""
    until = time.monotonic() + GONE_S
    while any(map(_is_actor, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in filter(_is_actor, pids):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _is_actor(pid: int) -> bool:
    """Return whether a process still is one of Ray's."""
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _join(ray: Any, address: str | None, nodes: int) -> bool:
    """Start or join a cluster. Returns True if there is nothing to leave later."""
    global _users, _joined
    with _lock:
        if _users and ray.is_initialized():
            if address is not None and address != _joined:
                raise ConfigError(f"address={address!r}: this process uses the Ray cluster {_joined or 'it started'} already")
            _users += 1
            return False
        if ray.is_initialized():  # by the caller
            return True
        try:
            with _handlers_kept(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if address is None:
                    _start(ray, nodes)
                else:
                    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            with contextlib.suppress(Exception):
                ray.shutdown()
            raise _cannot(address, error) from error
        _users, _joined = 1, address
        return False


def _start(ray: Any, nodes: int) -> None:
    """Start a cluster of this machine alone. Without an address Ray would join one that happens to run here."""
    home = _home()
    if not any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        token = home / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)  # a local cluster asks for one; else Ray would leave it in ~/.ray
    os.environ.setdefault("RAY_worker_niceness", "0")  # as workers of other backends; Ray's own is 15
    ray.init(
        address="local",
        num_cpus=max(1, nodes),  # as many processes are kept ready; actors ask for none
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(home),
    )


def _cannot(address: str | None, error: Exception) -> ClusterError:
    """Return an error in one line that says what to do."""
    said = " ".join(str(error).split())
    said = said if len(said) < 300 else f"{said[:300]} ..."
    if "token" in said.lower() or "auth" in said.lower():
        fix = "Give every machine, and this process, the token: RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=FILE"
    elif "version" in said.lower():
        fix = "Install the same versions of Ray and Python on all machines"
    elif address is None:
        fix = "Look whether /tmp and /dev/shm have room and ports are free, and whether `ray start --head` works"
    else:
        fix = f"Look whether `ray status --address {address}` works here; without an address Ray is started on this machine"
    what = "Ray cannot be started here" if address is None else f"the Ray cluster at {address} cannot be joined"
    return ClusterError(f"{what}: {type(error).__name__}: {said}", fix=fix)


def _leave(ray: Any) -> None:
    global _users, _joined
    with _lock:
        _users -= 1
        if _users == 0:
            _joined = None
            with _handlers_kept():
                ray.shutdown()


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces by one that ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@functools.cache
def _home() -> Path:
    """Make the folder of the clusters this process starts: sockets, logs, and a token of their own. It goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="fugu-ray-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
