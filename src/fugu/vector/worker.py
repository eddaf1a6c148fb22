"""The other side of the process backend: a process that builds a shard of environments and steps it on command.

Started as ``python -c BOOT``, in a session of its own (a Ctrl-C in the terminal reaches only the parent), with SIGINT and SIGTERM
blocked, and with three inherited descriptors: a socket to the parent, the memory of the rows, and a file for what faulthandler
says. Commands and answers go through ``Control`` in that memory; only what has no fixed size (factories, infos, errors, results of
calls) goes by mail.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import cloudpickle
import gymnasium

from fugu.emulation.env import EnvSpec, Infos, spec_of
from fugu.errors import EnvError, shared_class
from fugu.native import native
from fugu.vector.buffers import Buffers
from fugu.vector.config import InfoMode, OnError
from fugu.vector.control import Control, progress_word
from fugu.vector.mail import HANDSHAKE, Mailbox
from fugu.vector.parcel import Sealed, pack, pack_infos, pack_results
from fugu.vector.runner import CALL, CLOSE, RESET
from fugu.vector.shard import Shard, text_of

OK, MAIL, ERROR = 0, 1, 2
WITH_OPTIONS = 2
"""added to the slot of a reset whose options come by mail"""

PR_SET_PDEATHSIG = 1
OURS = (signal.SIGINT, signal.SIGTERM)
"""signals that ask a program to end: the parent's to answer, who may want to save first"""

BOOT = """
import json, sys
sys.path[:], beside = json.loads(sys.argv[1])
from fugu.emulation.beside import know
know(*beside)
from fugu.vector.worker import main
main(*map(int, sys.argv[2:]))
"""


@dataclass(frozen=True)
class Start:
    """First message: what to build."""

    factories: bytes
    """cloudpickled list"""
    registry: bytes
    """cloudpickled specs of the ids registered beside Gymnasium's own: a factory may make them by name"""
    worker: int
    first_env: int
    infos: InfoMode
    episode_infos: tuple[str, ...]
    on_error: OnError
    seeds: list[int | None]


@dataclass(frozen=True)
class Bind:
    """Second message: where to write."""

    spec: EnvSpec
    num_envs: int
    num_agents: int
    groups: list[slice]
    first_agent: int
    num_workers: int
    index: int
    """which control lines are this worker's"""
    max_spin_us: float


def main(parent: int, mail_fd: int, memory: int, crash: int) -> None:
    """Run until told to close, until the parent is gone, or until an environment takes the process down."""
    owner = os.getpid()
    for descriptor in (mail_fd, memory, crash):  # not for programs that an environment starts
        os.set_inheritable(descriptor, False)
    _leave_to_parent()
    faulthandler.enable(crash)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what was printed before an error is there when it is reported
    _end_with(parent)
    mailbox = Mailbox(socket.socket(fileno=mail_fd))
    os.register_at_fork(after_in_child=mailbox.close)  # nor is the line for what it forks
    shard: Shard | None = None
    try:
        shard = _build(mailbox)
        bind: Bind = pickle.loads(_receive(mailbox, HANDSHAKE))
        control = _bind(shard, bind, memory)
        mailbox.send(HANDSHAKE, pack("bound"))
        _serve(shard, control, bind.index, mailbox)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent closed its end: it wants this process gone
    except BaseException as error:
        if os.getpid() != owner:
            _end_fork(error)
        with contextlib.suppress(OSError):  # as above
            mailbox.send(HANDSHAKE, _pack_error(error, shard, "make"))
    finally:
        if shard is not None:
            shard.close()


def _receive(mailbox: Mailbox, seq: int) -> bytes:
    while (content := mailbox.receive(seq, 3600.0)) is None:
        pass
    return content


def _build(mailbox: Mailbox) -> Shard:
    start: Start = pickle.loads(_receive(mailbox, HANDSHAKE))
    try:
        for spec in pickle.loads(start.registry):
            gymnasium.registry.setdefault(spec.id, spec)
        # a package that is imported here after that registers its ids once more, and Gymnasium would say so of each
        warnings.filterwarnings("ignore", r".*Overriding environment .* already in registry")
        factories = pickle.loads(start.factories)
    except BaseException as error:
        raise EnvError(
            f"the environment factory could not be rebuilt in a worker: {type(error).__name__}: {error}",
            worker=start.worker,
            envs=(start.first_env,),
            phase="make",
            remote_traceback=traceback.format_exc(),
            cause=shared_class(error),
        ) from error
    shard = Shard(
        factories,
        start.first_env,
        worker=start.worker,
        infos=start.infos,
        episode_infos=start.episode_infos,
        on_error=start.on_error,
    )
    shard.seeds = start.seeds
    mailbox.send(HANDSHAKE, pack([Sealed(cloudpickle.dumps(spec_of(env))) for env in shard.envs]))
    return shard


def _bind(shard: Shard, bind: Bind, memory: int) -> Any:
    head = Control.bytes(bind.num_workers)
    buffers = Buffers(
        bind.spec,
        bind.num_envs,
        bind.num_agents,
        groups=bind.groups,
        head=head,
        memory=lambda nbytes: mmap.mmap(memory, nbytes),
    )
    os.close(memory)
    at = progress_word(buffers.head, bind.num_workers, bind.index)
    shard.bind(buffers, bind.first_agent, stage=True, at=at)
    return Control(buffers.head, bind.num_workers, bind.max_spin_us)


def _serve(shard: Shard, control: Any, index: int, mailbox: Mailbox) -> None:
    owner = os.getpid()
    while True:
        while not control.wait_command(index, 3600.0):
            pass
        command, seq = control.command(index), control.taken()
        if command == CLOSE:
            return
        slot = control.slot(index)
        said = _receive(mailbox, seq) if command == CALL or (command == RESET and slot & WITH_OPTIONS) else b""
        try:
            mail = _obey(shard, command, slot, said)
            if isinstance(mail, dict):
                status, content = (MAIL, pack_infos(mail)) if mail else (OK, b"")
            else:
                status, content = MAIL, pack_results(mail)
        except BaseException as error:
            if os.getpid() != owner:  # what an env has forked does not answer in its place
                _end_fork(error)
            status, content = ERROR, _pack_error(error, shard, "step")
        control.finish(index, status)  # first the status: the parent then reads, however large the mail is
        if status != OK:
            mailbox.send(seq, content)


def _obey(shard: Shard, command: int, slot: int, said: bytes) -> Infos | list[Any]:
    if command == CALL:
        content, envs = pickle.loads(said)
        kind, name, args, kwargs = pickle.loads(content)
        return shard.call(kind, name, args, kwargs, envs)
    if command == RESET:
        return shard.reset(slot & 1, pickle.loads(said) if said else None)
    return shard.step(slot)


def _pack_error(error: BaseException, shard: Shard | None, phase: str) -> bytes:
    if isinstance(error, EnvError):
        with contextlib.suppress(BaseException):  # a class of the user's own may hold anything
            return pack(error.fields())
    return pack(_foreign(error, shard, phase).fields())


def _end_fork(error: BaseException) -> NoReturn:
    """End a process that an env forked and did not end, as Python would have."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def _foreign(error: BaseException, shard: Shard | None, phase: str) -> EnvError:
    running = () if shard is None else (shard.first_env + shard.running,)
    return EnvError(
        f"{type(error).__name__}: {text_of(error)}",
        worker=None if shard is None else shard.worker,  # the parent knows which
        envs=running,
        phase=phase,
        remote_traceback="".join(traceback.format_exception(error)),
        cause=shared_class(error),
    )


def _leave_to_parent() -> None:
    """Pass over the signals that a service manager or job scheduler sends to every process of a program, so that there is an
    orderly end: this process ends when the parent says so, or with it.

    By a handler that does nothing, as ignoring would be inherited by programs that an environment starts, and those are the
    environment's to end. What it forks obeys as usual, from its first moment on."""

    def pass_over(number: int, frame: FrameType | None) -> None:
        pass

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, OURS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OURS)

    def obey() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)
        unblock()

    usual = {number: signal.signal(number, pass_over) for number in OURS}
    for number in OURS:
        signal.siginterrupt(number, False)  # system calls of an environment are not to fail because of it
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=obey)
    unblock()


def _end_with(parent: int) -> None:
    """End this process, and those it has started, when the parent does, whatever an environment is doing at that moment.

    If it is stopped then, the system's word of the parent's end lets it go on, and end. No more than that: it is also given when only
    the thread ends that this process was started from."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    try:
        pidfd = os.pidfd_open(parent)
    except (AttributeError, OSError):  # not everywhere; then look once in a while
        threading.Thread(target=_poll_parent, args=(parent,), daemon=True).start()
        return
    if native is not None:
        native.exit_with(pidfd)
    else:
        threading.Thread(target=_watch, args=(pidfd,), daemon=True).start()


def _watch(pidfd: int) -> None:
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def _poll_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)
