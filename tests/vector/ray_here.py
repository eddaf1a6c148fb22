"""Ray in this process: actors are threads, what they are sent is pickled, and they can be killed at any point.

For tests that have no need of real processes, and for machines without Ray. Only what fugu asks of Ray is here.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class ActorDiedError(RayError):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


class ObjectStoreFullError(RayError):
    pass


class Ref:
    """What an actor was asked, and what came of it once it is done."""

    def __init__(self, here: RayHere) -> None:
        self._here, self.done, self.value, self.error = here, False, None, None

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        with self._here.changed:
            if not self.done:
                self.done, self.value, self.error = True, value, error
                self._here.changed.notify_all()


class Actor:
    def __init__(self, here: RayHere, kind: type, arguments: tuple[Any, ...]) -> None:
        self._here, self._asked, self._alive = here, queue.Queue(), True
        self.frozen = threading.Event()
        self.frozen.set()
        self._kind, self._arguments = kind, cloudpickle.dumps(arguments)
        self._pending: list[Ref] = []
        here.actors.append(self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *arguments: self._ask(name, arguments))

    def _ask(self, name: str, arguments: tuple[Any, ...]) -> Ref:
        ref = Ref(self._here)
        arguments = tuple(each.value if isinstance(each, Ref) else each for each in arguments)
        self._pending.append(ref)
        if self._alive:
            self._asked.put((ref, name, cloudpickle.dumps(arguments)))
        else:
            ref.settle(error=ActorDiedError("The actor is dead because its worker process has died."))
        return ref

    def _run(self) -> None:
        made = self._kind(*cloudpickle.loads(self._arguments))
        while True:
            ref, name, content = self._asked.get()
            if not self._alive:
                return
            try:
                value = cloudpickle.dumps(getattr(made, name)(*cloudpickle.loads(content)))
            except Exception as error:
                ref.settle(error=RayTaskError(f"{type(error).__name__}: {error}"))
                continue
            self.frozen.wait(30)
            if self._alive:
                ref.settle(cloudpickle.loads(value))

    def end(self) -> None:
        """Die, as with SIGKILL."""
        self._alive = False
        self.frozen.set()
        for ref in self._pending:
            ref.settle(error=ActorDiedError("The actor is dead because its worker process has died."))
        self._asked.put((None, None, None))
        if threading.current_thread() is not self._thread:
            self._thread.join(10)


class RayHere(ModuleType):
    __version__ = "2.60.0"

    def __init__(self, machines: int = 1) -> None:
        super().__init__("ray")
        self.changed = threading.Condition()
        self.actors: list[Actor] = []
        self.machines, self.started = machines, False
        self.exceptions = SimpleNamespace(
            RayError=RayError,
            RayTaskError=RayTaskError,
            GetTimeoutError=GetTimeoutError,
            ObjectStoreFullError=ObjectStoreFullError,
        )

    def init(self, **settings: Any) -> None:
        self.started = True

    def is_initialized(self) -> bool:
        return self.started

    def shutdown(self) -> None:
        self.started = False
        for actor in self.actors:
            actor.end()
        self.actors.clear()

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeID": f"id{i}", "NodeManagerAddress": f"10.0.0.{i + 1}"} for i in range(self.machines)]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "id0")

    def remote(self, kind: type) -> Any:
        def options(**settings: Any) -> Any:
            return SimpleNamespace(remote=lambda *arguments: Actor(self, kind, arguments))

        return SimpleNamespace(options=options)

    def put(self, value: Any) -> Ref:
        ref = Ref(self)
        ref.settle(cloudpickle.loads(cloudpickle.dumps(value)))
        return ref

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        several = isinstance(refs, list)
        listed = refs if several else [refs]
        ready, _ = self.wait(listed, num_returns=len(listed), timeout=timeout)
        if len(ready) < len(listed):
            raise GetTimeoutError("Get timed out")
        for ref in listed:
            if ref.error is not None:
                raise ref.error
        return [ref.value for ref in listed] if several else refs.value

    def wait(self, refs: list[Ref], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Ref], list[Ref]]:
        until = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while sum(ref.done for ref in refs) < num_returns:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self.changed.wait(left)
            ready = [ref for ref in refs if ref.done][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def kill(self, actor: Actor) -> None:
        actor.end()


@pytest.fixture
def ray_here(monkeypatch: pytest.MonkeyPatch) -> RayHere:
    """Puts Ray in this process in the place of the real one."""
    here = RayHere()
    util, strategies = ModuleType("ray.util"), ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = SimpleNamespace  # type: ignore[attr-defined]
    for name, module in (("ray", here), ("ray.util", util), ("ray.util.scheduling_strategies", strategies)):
        monkeypatch.setitem(sys.modules, name, module)
    yield here
    here.shutdown()
