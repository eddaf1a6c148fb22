"""The sections of settings that each algorithm has in a run's config: a union, of which ``algorithm`` is the tag.

Those of the algorithms below are known without importing torch. Any other algorithm, of fugu or of a user's own, is imported and
declares its settings in its ``Config``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_type_hints

from fugu.algorithm.config import MAPPOConfig, PPOConfig, SafeConfig, SelfPlayConfig, SurrogateConfig, TeamPPOConfig
from fugu.algorithm.config_dreamer import DreamerConfig
from fugu.algorithm.config_episodes import GRPOConfig, TokenPPOConfig
from fugu.algorithm.config_offline import BCConfig, DTConfig, IQLConfig, TD3BCConfig
from fugu.algorithm.find import algorithm_class, is_own
from fugu.config import fixed
from fugu.emulation.place import cached_by_meaning
from fugu.errors import ConfigError
from fugu.rollout.config import DataConfig, ReplayConfig


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings in several sections, each a field. A class without this base is a section of its own."""

    INSTEAD: ClassVar[Mapping[str, str]] = {}
    """settings that related algorithms have and this one does not -> the one it has instead, if any"""


@dataclass(frozen=True, kw_only=True)
class PPOSettings(Settings):
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Proximal policy optimization"""


@dataclass(frozen=True, kw_only=True)
class SafePPOSettings(Settings):
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Proximal policy optimization"""
    safe: SafeConfig = field(default_factory=SafeConfig)
    """Limits on the cost of episodes"""


@dataclass(frozen=True, kw_only=True)
class MAPPOSettings(Settings):
    INSTEAD: ClassVar[Mapping[str, str]] = {"ppo.normalize_value": "mappo.value_norm"}

    ppo: TeamPPOConfig = field(default_factory=TeamPPOConfig)
    """Proximal policy optimization"""
    mappo: MAPPOConfig = fixed(default_factory=MAPPOConfig)
    """Critic and networks of the team"""


@dataclass(frozen=True, kw_only=True)
class SelfPlaySettings(Settings):
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Proximal policy optimization"""
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    """Games against earlier versions of the policy"""


@dataclass(frozen=True, kw_only=True)
class GRPOSettings(Settings):
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    """Group-relative policy optimization"""


@dataclass(frozen=True, kw_only=True)
class TokenPPOSettings(Settings):
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "ppo.gamma": "token_ppo.token_gamma",
        "ppo.lam": "token_ppo.token_lam",
        "ppo.entropy_coef": "token_ppo.token_entropy",
    }

    ppo: SurrogateConfig = field(default_factory=SurrogateConfig)
    """The loss of proximal policy optimization"""
    token_ppo: TokenPPOConfig = field(default_factory=TokenPPOConfig)
    """Estimates over the tokens of texts"""


@dataclass(frozen=True, kw_only=True)
class DreamerSettings(Settings):
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Rows that are kept and drawn again"""
    dreamer: DreamerConfig = field(default_factory=DreamerConfig)
    """World model and behaviour"""


@dataclass(frozen=True, kw_only=True)
class BCSettings(Settings):
    data: DataConfig = field(default_factory=DataConfig)
    """Recorded episodes"""
    bc: BCConfig = field(default_factory=BCConfig)
    """Behaviour cloning"""


@dataclass(frozen=True, kw_only=True)
class DTSettings(Settings):
    data: DataConfig = field(default_factory=DataConfig)
    """Recorded episodes"""
    dt: DTConfig = field(default_factory=DTConfig)
    """Decision Transformer"""


@dataclass(frozen=True, kw_only=True)
class IQLSettings(Settings):
    data: DataConfig = field(default_factory=DataConfig)
    """Recorded episodes"""
    iql: IQLConfig = field(default_factory=IQLConfig)
    """Implicit Q-learning"""


@dataclass(frozen=True, kw_only=True)
class TD3BCSettings(Settings):
    data: DataConfig = field(default_factory=DataConfig)
    """Recorded episodes"""
    td3bc: TD3BCConfig = field(default_factory=TD3BCConfig)
    """TD3+BC"""


KNOWN: Mapping[str, type[Settings]] = {
    "ppo": PPOSettings,
    "safe_ppo": SafePPOSettings,
    "mappo": MAPPOSettings,
    "grpo": GRPOSettings,
    "token_ppo": TokenPPOSettings,
    "self_play": SelfPlaySettings,
    "dreamer": DreamerSettings,
    "bc": BCSettings,
    "dt": DTSettings,
    "iql": IQLSettings,
    "td3bc": TD3BCSettings,
}
"""algorithm -> its settings, for those whose settings need no torch"""
OFFLINE = ("bc", "dt", "iql", "td3bc")
"""those that learn from recorded episodes"""
ALL = (*(name for name in KNOWN if name not in OFFLINE), "sac", *OFFLINE)
"""those of fugu with settings that others do not have"""


@cached_by_meaning
def settings_type(algorithm: str) -> type | None:
    """Return the ``Config`` of an algorithm, or None if it has no settings; raise a ConfigError if there is no such algorithm."""
    if algorithm in KNOWN:
        return KNOWN[algorithm]
    kind = algorithm_class(algorithm).Config
    return kind if dataclasses.fields(kind) else None


@cached_by_meaning
def sections(algorithm: str) -> Mapping[str, type]:
    """Return the sections that ``algorithm`` adds to a run's config, by name; its own comes last."""
    kind = settings_type(algorithm)
    if kind is None:
        return {}
    if not issubclass(kind, Settings):
        return {_section_name(algorithm): kind}
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def fixed_sections(algorithm: str) -> set[str]:
    """Return the sections of ``algorithm`` in which a resumed run can change nothing."""
    kind = settings_type(algorithm)
    if kind is None or not issubclass(kind, Settings):
        return set()
    return {each.name for each in dataclasses.fields(kind) if each.metadata.get("fixed")}


def gathered(algorithm: str, parts: Mapping[str, Any]) -> Any:
    """Return the sections ``parts`` as the algorithm's ``Config``; None if it has no settings."""
    kind = settings_type(algorithm)
    if kind is None:
        return None
    return kind(**parts) if issubclass(kind, Settings) else next(iter(parts.values()))


def narrowed(algorithm: str, section: str, value: Any, *, strict: bool) -> Any:
    """Return ``value`` as the section that ``algorithm`` has under this name, which may have fewer fields.

    ``strict``: raise a ConfigError if a field that is left out was set.
    """
    kind: Any = sections(algorithm)[section]
    if type(value) is kind:
        return value
    names = {each.name for each in dataclasses.fields(kind)}
    if not strict and dataclasses.is_dataclass(value):
        return kind(**{each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.name in names})
    if not isinstance(value, kind):
        raise ConfigError(f"{section} is a section; give a mapping of its settings, or {section}.SETTING; got {value!r:.60}")
    for other in dataclasses.fields(value):
        if other.name not in names and getattr(value, other.name) != other.default:
            raise ConfigError(
                means_nothing(algorithm, f"{section}.{other.name}") or f"{section}.{other.name} means nothing here"
            )
    return kind(**{name: getattr(value, name) for name in names})


def means_nothing(algorithm: str, path: str) -> str | None:
    """Return the message about a setting that ``algorithm`` does not have and another one has; None if no algorithm has it."""
    owner = _owner(path)
    if owner is None:
        return None
    own = sections(algorithm)
    if path.partition(".")[0] in own:
        kind = settings_type(algorithm)
        instead = kind.INSTEAD.get(path) if kind is not None and issubclass(kind, Settings) else None
        return f"{path} means nothing to algorithm={algorithm}; " + (f"it has {instead} instead" if instead else "leave it out")
    whose = f"whose own settings are those of {' and '.join(own)}" if own else "which has no settings of its own"
    return f"{path} means nothing to algorithm={algorithm}, {whose}; leave it out or use --algorithm {owner}"


def _owner(path: str) -> str | None:
    """Return the algorithm that a setting belongs to, or all that share it; None if there is none."""
    section, _, name = path.partition(".")
    having = [algorithm for algorithm in ALL if name in {f.name for f in _fields(sections(algorithm).get(section))}]
    own = [algorithm for algorithm in having if [*sections(algorithm)][-1] == section]
    return " or ".join(own[:1] or having) or None


def _fields(kind: type | None) -> tuple[Any, ...]:
    return () if kind is None else dataclasses.fields(kind)


def _section_name(algorithm: str) -> str:
    """Return the section's name: ``my_algo`` for ``my_algo.py:MyAlgo``, its own name for an algorithm of fugu."""
    if not is_own(algorithm):
        return algorithm
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", algorithm.rpartition(":")[2]).lower()
