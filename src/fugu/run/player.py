"""A trained policy with environments to play in: for evaluating, for videos and for watching."""

from __future__ import annotations

import dataclasses
from types import TracebackType

from fugu.run.run import Run
from fugu.trainer import checkpoint
from fugu.trainer.build import find_device, make_algorithm, make_vec
from fugu.trainer.evaluate import Evaluation, evaluate


class Player:
    """The checkpoint ``which`` of ``run`` (``latest``, ``best`` or its step), and ``num_envs`` environments of its kind."""

    def __init__(self, run: Run, which: str | int = "latest", *, num_envs: int = 1, device: str | None = None) -> None:
        vector = dataclasses.replace(run.config.vector, num_envs=num_envs, batch_size=None, num_workers=None)
        self.config = dataclasses.replace(run.config, vector=vector, minibatch=None)
        self.device = find_device(device or "cpu")
        path = checkpoint.find(run.folder.checkpoints, which)
        self.vec = make_vec(self.config)
        try:
            self.algorithm = make_algorithm(self.config, self.vec, self.device)
            self.policy = self.algorithm.modules["policy"]
            saved = checkpoint.load(path)
            self.policy.load_state_dict(saved.tensors["policy"])
            self.step = saved.step
        except BaseException:
            self.vec.close()
            raise

    def evaluate(self, episodes: int, *, greedy: bool = False, seed: int = 1) -> Evaluation:
        return evaluate(
            self.vec,
            self.algorithm.act,
            episodes=episodes,
            state_size=self.policy.state_size,  # type: ignore[arg-type]
            seed=seed,
            greedy=greedy,
            device=self.device,
        )

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.vec.close()
