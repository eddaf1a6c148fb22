"""From verdicts to figures: how many tasks are solved with k tries?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fugu.errors import ConfigError


def pass_at_k(tries: int, passed: int, k: int) -> float:
    """Return the probability that at least one of ``k`` of these tries, drawn without putting back, passed: 1 - C(n - c, k) / C(n, k).

    It is the unbiased estimate of what k fresh tries would give (Chen et al. 2021, arXiv 2107.03374).
    """
    if not 0 <= passed <= tries:
        raise ConfigError(f"passed={passed} must be from 0 to tries={tries}")
    if not 1 <= k <= tries:
        raise ConfigError(f"pass@{k} needs at least {max(k, 1)} completions of a task, got {tries}")
    return 1.0 - math.comb(tries - passed, k) / math.comb(tries, k)


def mean_pass_at_k(counts: Mapping[str, tuple[int, int]], ks: Sequence[int]) -> dict[int, float]:
    """Average over tasks, given (tries, passed) of each; tasks with fewer than k tries are left out of pass@k, NaN without any."""
    out: dict[int, float] = {}
    for k in ks:
        values = [pass_at_k(tries, passed, k) for tries, passed in counts.values() if tries >= k]
        out[k] = math.fsum(values) / len(values) if values else math.nan
    return out
