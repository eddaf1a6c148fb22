"""Environments in other processes, over one shared mapping: see ``worker.py`` for the other side.

With one batch the calling process would only wait, so it steps the first shard itself (unless ``isolate``). With several
batches every shard is a worker and the caller is free between ``send`` and ``recv``. While it waits it spins briefly, then
sleeps, and looks every tenth of a second whether a worker is gone or late: nothing waits for a dead process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
import traceback
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle

from fugu.emulation.env import EnvSpec, Infos, spec_of
from fugu.emulation.factory import Factory
from fugu.errors import EnvError, EnvTimeout, WorkerDied, shared_class
from fugu.vector.buffers import Buffers, shared_memory
from fugu.vector.config import VectorConfig, usable_cores
from fugu.vector.control import Control
from fugu.vector.deadline import Deadline, build_here, close_here, release, run_here
from fugu.vector.launch import LOOK_S, Worker, anonymous_file, deliver, end_all
from fugu.vector.mail import HANDSHAKE
from fugu.vector.parcel import Sealed, open_infos, pickled, registered, unpack
from fugu.vector.runner import CALL, CLOSE, RESET, STEP, Options, Runner, agent_slices, check_budget, shared_spec, split
from fugu.vector.shard import Shard, is_unscored, restart_seed, text_of, truncate
from fugu.vector.worker import ERROR, MAIL, WITH_OPTIONS, Bind, Start

MAX_SPIN_US = 200.0


class Process(Runner):
    """Shard ``s`` is stepped by process ``s``, or, where the caller steps shard 0, by process ``s - 1``."""

    shares_workers = False

    def __init__(self, factories: Sequence[Factory], config: VectorConfig) -> None:
        self._config = config
        self._factories = factories
        self._split = split(config.num_envs, config.resolved_workers, config.num_batches)
        self._local: Shard | None = None
        self._hosted = 0 if config.resolved_isolate else 1
        """shards stepped by the caller: none or the first"""
        self._workers: list[Worker] = []
        self._memory = anonymous_file("fugu-rows")
        self._deadline = Deadline()
        self._due: dict[int, float] = {}
        self._orders: dict[int, tuple[int, int, Options]] = {}
        self._own_turn = False
        """the caller's own shard has not run yet"""
        self._reborn: set[int] = set()
        self._bound = False
        """there are buffers"""
        self._restarts = 0
        self._next_look = 0.0
        self._bell: list[Any] = []
        """the control lines, once there are any: what the finalizer needs to ask the workers to go"""
        self._finalizer = weakref.finalize(self, _end, self._workers, self._bell, self._memory, os.getpid())
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    # --- opening ---

    def _open(self) -> None:
        config = self._config
        parts = self._split.envs[self._hosted :]
        for index, envs in enumerate(parts):
            self._workers.append(self._launch(index, envs, [None] * len(envs)))
        deadline = time.monotonic() + config.start_timeout
        deliver(self._workers, deadline)
        specs: list[EnvSpec] = []
        if self._hosted:  # built here while the workers build theirs
            own = self._split.envs[0]
            self._local = build_here([self._factories[i] for i in own], 0, self._deadline, config)
            specs += [spec_of(env) for env in self._local.envs]
        deadline = time.monotonic() + config.start_timeout
        for worker in self._workers:
            specs += self._opened(worker, self._mail(worker, "make", deadline), worker.envs, "make")
        self.spec = shared_spec(specs)
        self.env_agents = agent_slices([spec.num_agents for spec in specs])
        self.group_agents = [self._agents_of(range(envs.start, envs.stop)) for envs in self._group_envs()]
        head = Control.bytes(len(self._workers))
        self.buffers = Buffers(
            self.spec,
            config.num_envs,
            self.env_agents[-1].stop,
            groups=self.group_agents,
            head=head,
            memory=lambda nbytes: shared_memory(self._memory, nbytes),
        )
        self._bound = True
        busy = len(self._split.envs) + (0 if self._hosted else 1)
        self._spin = MAX_SPIN_US if busy <= usable_cores() else 0.0
        self._control = Control(self.buffers.head, len(self._workers), self._spin)
        self._bell.append(self._control)
        if self._local is not None:
            self._local.bind(self.buffers, 0, stage=True)
        for worker in self._workers:
            self._send_bind(worker)
        for worker in self._workers:
            self._mail(worker, "make", deadline)
        self._ranges = [(max(0, shards.start - self._hosted), shards.stop - self._hosted) for shards in self._split.shards]

    def _launch(self, index: int, envs: range, seeds: list[int | None]) -> Worker:
        fix = "Build what cannot be pickled inside the factory, or use backend='serial'"
        factories = pickled([self._factories[i] for i in envs], "the environment factory", fix)
        worker = Worker(index + self._hosted, envs, self._memory)
        try:
            config = self._config
            kept = (config.infos or "all", config.episode_infos)
            start = Start(factories, registered(), worker.number, envs.start, *kept, config.on_error, seeds)
            worker.post(HANDSHAKE, pickle.dumps(start))
        except BaseException:
            end_all([worker], politely=False)
            raise
        return worker

    def _send_bind(self, worker: Worker) -> None:
        index = worker.number - self._hosted
        bind = Bind(
            self.spec,
            self._config.num_envs,
            self.env_agents[-1].stop,
            self.group_agents,
            self.env_agents[worker.envs.start].start,
            len(self._workers),
            index,
            self._spin,
        )
        worker.post(HANDSHAKE, cloudpickle.dumps(bind))

    # --- running ---

    @property
    def restarts(self) -> int:
        return self._restarts

    def take_actions(self, group: int, action: Any, slot: int) -> None:
        self.buffers.write_action(group, action, slot)
        self.buffers.check_actions(group, slot)

    def drain(self) -> None:
        """Return None: the statistics are not kept here."""

    def start(self, group: int, command: int, slot: int, options: Options = None) -> None:
        limit = self._config.reset_timeout if command == RESET else self._config.step_timeout
        self._due[group] = time.monotonic() + limit
        self._orders[group] = (command, slot, options)
        self._own_turn = self._local is not None
        control = self._control
        content = None if options is None else pickled(options, "the reset options")
        for index in range(*self._ranges[group]):
            if content is not None:
                control.post(index, RESET, slot | WITH_OPTIONS)
                self._workers[index].post(control.seq(index), content)
            elif self._reborn and index in self._reborn:
                control.post(index, RESET, slot)
            else:
                control.post(index, command, slot)
        self._reborn.difference_update(range(*self._ranges[group]))
        if content is not None:
            deliver(self._workers[slice(*self._ranges[group])], self._due[group])

    def finish(self, groups: Sequence[int]) -> tuple[int, Infos]:
        infos: Infos = {}
        if self._own_turn and self._local is not None:
            self._own_turn = False
            infos.update(run_here(self._local, *self._orders[groups[0]], self._deadline, self._config))
        group = self._wait(groups, infos)
        errors = []
        for index in range(*self._ranges[group]):
            status = self._control.status(index)
            if status not in (MAIL, ERROR):
                continue
            worker = self._workers[index]
            try:
                until = time.monotonic() + self._config.step_timeout  # it is done, however late it is asked
                mail = self._mail(worker, self._phase(group), until)
                with self._reading(worker, worker.envs, self._phase(group)):
                    infos.update(open_infos(mail, self._agents_of(worker.envs)))
            except WorkerDied as error:
                self._lost(worker, group, error, infos)
            except EnvError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if self._config.on_error == "restart":
            firsts = (infos.get(agents.start, {}) for agents in self.env_agents) if infos else ()
            self._restarts += sum(info.get("restarted") == "env" for info in firsts)
            check_budget(self._restarts, self._config, infos)
        return group, infos

    def abandon(self, group: int) -> None:
        self._own_turn = False
        low, high = self._ranges[group]
        while not self._control.wait_all(low, high, LOOK_S):
            self._look([group], time.monotonic(), {})

    def call(self, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], envs: Sequence[int]) -> list[Any]:
        results: dict[int, Any] = {}
        asked = []
        content = pickled((kind, name, args, kwargs), f"the arguments of {name!r}")
        for shard, part in enumerate(self._split.envs):
            mine = [i for i in envs if i in part]
            if not mine:
                continue
            local = [i - part.start for i in mine]
            if shard < self._hosted:
                assert self._local is not None
                results.update(zip(mine, self._local.call(kind, name, args, kwargs, local), strict=True))
                continue
            index = shard - self._hosted
            worker = self._workers[index]
            self._control.post(index, CALL, 0)
            worker.post(self._control.seq(index), pickle.dumps((content, local)))
            asked.append((worker, mine))
        deadline = time.monotonic() + self._config.step_timeout
        deliver([worker for worker, _ in asked], deadline)
        errors = []
        for worker, mine in asked:
            try:
                results.update(zip(mine, self._opened(worker, self._mail(worker, "call", deadline), mine, "call"), strict=True))
            except EnvError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return [results[i] for i in envs]

    def close(self) -> None:
        """Ask, then insist: see ``end_all``. Never raises because of a broken worker or env."""
        self._finalizer()
        local, self._local = self._local, None
        if local is not None:
            close_here(local, self._deadline)
        release()

    # --- waiting, and what can go wrong meanwhile ---

    def _wait(self, groups: Sequence[int], infos: Infos) -> int:
        """Wait for the first of ``groups`` that is done. Look at the workers when that takes long, and twice a second anyway."""
        control, one = self._control, len(groups) == 1
        while True:
            if one:
                low, high = self._ranges[groups[0]]
                found = 0 if control.wait_all(low, high, LOOK_S) else -1
            else:
                found = control.wait_any([self._ranges[g] for g in groups], LOOK_S)
            now = time.monotonic()
            if found < 0 or now > self._next_look:
                self._next_look = now + 0.5
                self._look(groups, now, infos)
            if found >= 0:
                return groups[found]

    def _look(self, groups: Sequence[int], now: float, infos: Infos) -> None:
        for group in groups:
            for index in range(*self._ranges[group]):
                if self._control.done(index):
                    continue
                worker = self._workers[index]
                worker.sending()
                if worker.exited():
                    self._lost(worker, group, self._died(worker, self._phase(group)), infos)
                elif now > self._due[group]:
                    running = worker.envs.start + min(self._control.progress(index), len(worker.envs) - 1)
                    late = self._late(worker, self._phase(group), range(running, running + 1))
                    self._lost(worker, group, late, infos)

    def _lost(self, worker: Worker, group: int, error: EnvError, infos: Infos) -> None:
        """Raise, or put a new worker in its place whose episodes count as truncated."""
        if self._config.on_error == "raise":
            raise error
        self._restarts += 1
        if self._restarts > self._config.max_restarts:
            raise error
        index = worker.number - self._hosted
        end_all([worker], politely=False)
        old = self.buffers.seeds[worker.envs.start : worker.envs.stop]
        old[:] = [restart_seed(abs(int(seed)), self._restarts) for seed in old]
        fresh = self._launch(index, worker.envs, [int(seed) for seed in old])
        self._workers[index] = fresh
        deadline = time.monotonic() + self._config.start_timeout
        self._mail(fresh, "make", deadline)
        self._control.settle(index)
        self._send_bind(fresh)
        self._mail(fresh, "make", deadline)
        self._reborn.add(index)
        slot = self._orders[group][1]
        agents = self._agents_of(worker.envs)
        lost, last = self.buffers.part(slot, agents), self.buffers.part(1 - slot, agents)
        truncate(lost, last.obs, unscored=is_unscored(self.spec.metadata))
        infos.update({agent: {"restarted": "worker", "error": str(error)} for agent in range(agents.start, agents.stop)})

    def _phase(self, group: int) -> str:
        return "reset" if self._orders.get(group, (STEP,))[0] == RESET else "step"

    def _died(self, worker: Worker, phase: str) -> WorkerDied:
        return worker.death(phase, self._seeds(worker.envs))

    def _late(self, worker: Worker, phase: str, envs: range) -> EnvTimeout:
        setting = {"make": "start_timeout", "reset": "reset_timeout"}.get(phase, "step_timeout")
        return EnvTimeout(
            f"no answer within {getattr(self._config, setting):g} s ({setting})"
            + ("; the env named below is the one that was running" if len(envs) == 1 else "")
            + (" (the process is stopped by a signal)" if worker.stopped() else ""),
            worker=worker.number,
            envs=envs,
            seeds=self._seeds(envs),
            phase=phase,
        )

    def _mail(self, worker: Worker, phase: str, deadline: float) -> Any:
        """Return the worker's answer to the last command. Raise if the answer is an error, if the worker died, or if it is late."""
        seq = HANDSHAKE if phase == "make" else self._control.seq(worker.number - self._hosted)
        content = None
        while content is None:
            left = deadline - time.monotonic()
            try:
                content = worker.mailbox.receive(seq, max(0.0, min(LOOK_S, left)))
                if content is None and worker.exited():  # a process that it started may hold its socket
                    content = worker.mailbox.receive(seq, 0.0)
                    if content is None:
                        raise self._died(worker, phase)
            except EOFError:
                raise self._died(worker, phase) from None
            if content is None and left <= 0:
                raise self._late(worker, phase, worker.envs)
        with self._reading(worker, worker.envs, phase):
            mail = unpack(content)
            if isinstance(mail, dict) and "remote_traceback" in mail:
                place = {} if mail["worker"] is not None else {"worker": worker.number, "envs": tuple(worker.envs)}
                raise EnvError(**{**mail, **place})
        return mail

    def _opened(self, worker: Worker, values: Sequence[Any], envs: Sequence[int], phase: str) -> list[Any]:
        """Return what ``envs`` of a worker have sent, with objects in it opened."""
        with self._reading(worker, worker.envs, phase):
            pairs = list(zip(envs, values, strict=True))
        out = []
        for env, value in pairs:
            with self._reading(worker, range(env, env + 1), phase):
                out.append(value.open() if isinstance(value, Sealed) else value)
        return out

    @contextlib.contextmanager
    def _reading(self, worker: Worker, envs: range, phase: str) -> Iterator[None]:
        """Turn whatever is raised while something of ``envs`` is read into an EnvError."""
        try:
            yield
        except (EnvError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise EnvError(
                f"an object that was sent by the env cannot be read here: {type(error).__name__}: {text_of(error)}",
                worker=worker.number,
                envs=tuple(envs),
                seeds=self._seeds(envs),
                phase=phase,
                remote_traceback="".join(traceback.format_exception(error)),
                cause=shared_class(error),
            ) from error

    def _seeds(self, envs: range) -> tuple[int | None, ...]:
        if not self._bound:
            return ()
        return tuple(int(seed) if seed >= 0 else None for seed in self.buffers.seeds[envs.start : envs.stop])

    def _group_envs(self) -> list[range]:
        return [range(self._split.envs[s.start].start, self._split.envs[s.stop - 1].stop) for s in self._split.shards]

    def _agents_of(self, envs: range) -> slice:
        return slice(self.env_agents[envs.start].start, self.env_agents[envs.stop - 1].stop)


def _end(workers: list[Worker], bell: list[Any], memory: int, owner: int) -> None:
    """Ask every worker to close, then see to it. Also runs at garbage collection and at interpreter exit."""
    if os.getpid() != owner:
        return  # a forked copy of this object: the workers are not its own
    for control in bell:
        for index in range(len(workers)):
            control.post(index, CLOSE, 0)
    end_all(workers)
    os.close(memory)
