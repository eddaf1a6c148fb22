"""Examples of the native environment ``reverse``: prompts, and the right answers to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fugu import vector

END = 1
"""the token after the last digit"""


def examples(count: int, *, seed: int = 0, **settings: Any) -> tuple[Tensor, Tensor]:
    """Return ``obs [count, prompt]`` and ``action [count, answer]``, as they stand in the rows; ``settings`` are the environment's."""
    with vector.make("reverse", count, env_kwargs=settings, backend="native", num_workers=1) as vec:
        prompt = torch.from_numpy(vec.reset(seed)[0].copy())
        answer = torch.zeros((count, vec.action_layout.row_shape[0]), dtype=torch.int64)
    length = (prompt != 0).sum(1)
    place = length[:, None] - 1 - torch.arange(prompt.shape[1])  # where the k-th token of the answer is in the prompt
    answer[:, :-1] = torch.where(place >= 0, prompt.gather(1, place.clamp(min=0)), 0)
    answer[torch.arange(count), length] = END
    return prompt, answer
