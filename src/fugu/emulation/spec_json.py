"""What a policy must know of its environments, as JSON: a checkpoint carries it, so that acting needs no environment.

In: an ``EnvSpec``. Out: its spaces, agents, costs and columns, from which ``spec_from_json`` makes an equal one. How an environment
is drawn or reset is left out: no policy asks for it.
"""

from __future__ import annotations

from typing import Any

from fugu.emulation.columns import own_columns
from fugu.emulation.env import EnvSpec
from fugu.errors import ConfigError, SpaceError
from fugu.spaces.as_json import from_json, to_json

MOST_AGENTS = 1 << 24


def spec_to_json(spec: EnvSpec) -> dict[str, Any] | None:
    """Return ``spec`` as JSON; None where JSON cannot hold it: keys of a Dict that are neither text nor numbers."""
    named = all(isinstance(name, str | int) for name in spec.agents)
    try:
        return {
            "name": spec.name,
            "observation_space": to_json(spec.observation_space),
            "action_space": to_json(spec.action_space),
            "num_agents": spec.num_agents,
            "agents": list(spec.agents) if named else [],
            "agent_spaces": [[to_json(space) for space in pair] for pair in spec.agent_spaces] if named else [],
            "costs": list(spec.costs),
            "columns": {name: [list(shape), dtype] for name, (shape, dtype) in spec.columns.items()},
        }
    except SpaceError:
        return None


def spec_from_json(value: Any) -> EnvSpec:
    """Return the spec that ``spec_to_json`` wrote as ``value``; SpaceError if it is anything else."""
    if not isinstance(value, dict):
        raise SpaceError("expected what a checkpoint says of its environments", where="env")
    count, agents = value.get("num_agents"), _texts(value, "agents", str | int)
    if type(count) is not int or not 1 <= count <= MOST_AGENTS or len(agents) not in (0, count):
        raise SpaceError(f"num_agents={count!r} does not fit the {len(agents)} agents named", where="env")
    spaces = value.get("agent_spaces", [])
    pairs = isinstance(spaces, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in spaces)
    if not pairs or len(spaces) not in (0, len(agents)):
        raise SpaceError("agent_spaces must be a pair of spaces for each agent, or nothing", where="env")
    try:
        columns = own_columns(value.get("columns"), "env")
    except ConfigError as error:
        raise SpaceError(error.problem, where="env") from None
    return EnvSpec(
        from_json(value.get("observation_space")),
        from_json(value.get("action_space")),
        count,
        name=str(value.get("name", "")),
        costs=_texts(value, "costs", str),
        columns=columns,
        agents=agents,
        agent_spaces=tuple((from_json(obs), from_json(action)) for obs, action in spaces),
    )


def _texts(value: dict[str, Any], name: str, kind: Any) -> tuple[Any, ...]:
    found = value.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in found) or len(set(found)) < len(found):
        raise SpaceError(f"{name} must be a list of names, each once", where="env")
    return tuple(found)
