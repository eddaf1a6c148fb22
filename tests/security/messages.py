"""What a worker may say: messages that are cut off, changed, or of another shape than any that a worker of ours sends.

Something in an environment may write to the socket of its worker, or into its memory. The parent answers with a typed error.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

import fugu
from fugu.errors import CallOrderError, EnvError
from fugu.vector.parcel import pack, unpack

LIMIT_S = 0.5
ACTIONS = np.zeros(2, np.int64)


class Talker(gym.Env[Any, Any]):
    """Has much to say on each step, and is wrong when it is asked to be."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {"first": True}

    def step(self, action: Any) -> Any:
        infos = {"plain": 7, "text": "x" * 100, "array": np.arange(9), "deep": [{"a": (1, {2})}], "number": np.float32(3)}
        return np.zeros(2, np.float32), 1.0, False, False, infos

    def said(self, wrong: bool = False) -> Any:
        if wrong:
            raise ValueError("as asked")
        return {"array": np.ones((2, 3)), "text": "y"}


class Calls:
    """Would be executed by whoever unpickles it."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def spoilt(content: bytes, chance: random.Random, values: Sequence[Any]) -> bytes:
    kind = chance.randrange(8)
    if kind == 0:
        return content[: chance.randrange(len(content) + 1)]
    if kind == 1:
        return chance.randbytes(chance.choice((0, 1, 2, 50, 1000)))
    if kind == 2:
        return pickle.dumps(chance.choice((Calls(), [Calls()], {0: {"a": Calls()}}, os.system, Talker)), 5)
    if kind == 3:
        return pack(chance.choice(values))
    if kind == 4:
        return pack({chance.choice((0, 1, 7, -1, "x", None)): chance.choice(values), 1: {"unpicklable": chance.choice(values)}})
    with contextlib.suppress(Exception):
        if kind == 5 and isinstance(said := unpack(content), dict) and "remote_traceback" in said:
            return pack({**said, chance.choice(sorted(said)): chance.choice(values)})
    changed = bytearray(content or b"x")
    for _ in range(chance.choice((1, 3, 20))):
        changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x2E, 0x52, 0x81, 0x93, 255, chance.randrange(256)))
    return bytes(changed)


class Line:
    """The parent's end of a socket, on which a packet is spoilt now and then."""

    def __init__(self, end: Any, chance: random.Random, values: Sequence[Any]) -> None:
        self.end, self.chance, self.values = end, chance, values

    def recv(self, size: int) -> bytes:
        packet = self.end.recv(size)
        return spoilt(packet, self.chance, self.values)[:size] or b"x"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.end, name)


class Hearing:
    """Environments whose workers say what they should not, case after case."""

    def __init__(self) -> None:
        self.vec: Any = None

    def case(self, chance: random.Random, values: Sequence[Any]) -> str:
        """Return what was wrong with the answer to one message, if anything."""
        with self._spoilt(chance, values):
            try:
                kind = chance.randrange(4)
                if kind < 2:
                    self.vec.step(ACTIONS)
                else:
                    self.vec.call("said", kind == 2)
            except EnvError as error:
                missing = error.worker is None or not error.envs or not error.seeds
                return f"no place in {error}" if missing else ""
        return ""

    def close(self) -> None:
        if self.vec is not None:
            self.vec.close()
            self.vec = None

    def ready(self) -> None:
        """See to it that there are environments that work: those of before, unless an answer is still on its way."""
        if self.vec is not None:
            try:
                self.vec.reset()
                return
            except (EnvError, CallOrderError):
                self.vec.close()
        settings: dict[str, Any] = {"step_timeout": LIMIT_S, "reset_timeout": LIMIT_S}
        self.vec = fugu.vector.make(Talker, 2, backend="process", num_workers=2, isolate=True, seed=1, **settings)
        self.vec.reset()

    @contextlib.contextmanager
    def _spoilt(self, chance: random.Random, values: Sequence[Any]) -> Iterator[None]:
        mailbox = chance.choice(self.vec._runner._workers).mailbox
        if chance.random() < 0.2:
            end = mailbox._socket
            mailbox._socket = Line(end, chance, values)
            try:
                yield
            finally:
                mailbox._socket = end
            return
        receive = mailbox.receive

        def changed(seq: int, timeout: float) -> bytes | None:
            content = receive(seq, timeout)
            return None if content is None else spoilt(content, chance, values)

        mailbox.receive = changed
        try:
            yield
        finally:
            del mailbox.receive
