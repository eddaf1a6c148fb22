"""Is what a checkpoint holds something that a training can have left? Its hashes only say that nobody changed it since they were made.

Comes in: a checkpoint that was read. A CheckpointError says what in it cannot be. Shapes are left to those who put them in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from fugu.policy.normalize import RunningMoments
from fugu.trainer.checkpoint_format import CheckpointError

MOST = 2**62
"""of anything that is counted"""


def check_state(state: Mapping[str, Any], step: int) -> None:
    """Refuse counts that are none, numbers that are not finite, and what is of another step than the checkpoint."""
    for name in ("steps", "updates", "episodes"):
        _expect(state, name, _is_count, "a count")
    for name in ("learned", "evaluated_at"):
        if name in state:  # not in earlier versions
            _expect(state, name, _is_count, "a count")
    for name in ("best", "evaluated", "merit", "learning_rate"):
        _expect(state, name, lambda value: value is None or _is_number(value), "a number, or nothing")
    _expect(state, "restart_seed", lambda value: value is None or _is_count(value), "a seed, or nothing")
    if state.get("learning_rate") is not None and state["learning_rate"] < 0:
        raise CheckpointError("its learning_rate is negative")
    if state["steps"] != step:
        raise CheckpointError(f"it is of step {step}, and its state of step {_brief(state['steps'])}")
    if "score" in state:
        _expect(state, "score", _is_score, "rounds of episodes")


def check_numbers(groups: Mapping[str, Mapping[str, Tensor]], parameters: Iterable[str]) -> None:
    """Refuse weights that are not finite, and NaN anywhere. ``parameters``: the names of weights, as ``group.name``."""
    weights = frozenset(parameters)
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                continue
            whole = f"{group}.{name}"
            if (~tensor.isfinite() if whole in weights else tensor.isnan()).any():
                raise CheckpointError(
                    f"its {whole} holds numbers that are not finite; go on from an earlier checkpoint, or train anew"
                )


def check_moments(module: nn.Module) -> None:
    """Refuse running means and variances that no numbers have, once they are in place."""
    for name, part in module.named_modules():
        if isinstance(part, RunningMoments):
            fine = part.count >= 0 and bool((part.var >= 0).all())
            if not fine or not all(bool(each.isfinite().all()) for each in (part.count, part.mean, part.var)):
                raise CheckpointError(f"its {name} is no mean and variance of anything")


def check_optimizer(state: Mapping[str, Tensor]) -> None:
    """Refuse numbers that are not finite, negative counts, and negative mean squares."""
    for name, tensor in state.items():
        last = name.rpartition(".")[2]
        fine = tensor.numel() == 1 and 0 <= tensor.item() < MOST if last in ("steps", "step") else True
        if not fine or not tensor.double().isfinite().all() or (last == "square" and (tensor < 0).any()):
            raise CheckpointError(f"its optimizer.{name} is nothing that an optimizer can have")


def put(target: Tensor, saved: Tensor, name: str) -> None:
    """Copy a saved tensor over another of the same shape; torch alone would also repeat a smaller one."""
    if target.shape != saved.shape or target.is_floating_point() != saved.is_floating_point():
        kinds = [f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in (saved, target)]
        raise CheckpointError(f"its {name} is {kinds[0]} instead of {kinds[1]}")
    target.data.copy_(saved)


def _expect(state: Mapping[str, Any], name: str, fits: Callable[[Any], bool], what: str) -> None:
    if not fits(state.get(name)):
        raise CheckpointError(f"its {name} is {_brief(state.get(name))}, and must be {what}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2 * MOST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def _is_score(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("rounds"), list) or type(value.get("settled")) is not bool:
        return False
    rounds = [*value["rounds"], value.get("round")]
    pairs = all(isinstance(each, list) and len(each) == 2 and _is_count(each[0]) and _is_number(each[1]) for each in rounds)
    return pairs and all(count > 0 for count, _ in value["rounds"])


def _brief(value: Any) -> str:
    return f"{value!r:.60}"
