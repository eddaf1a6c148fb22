"""Names that Stable-Baselines3, CleanRL and PufferLib have for what is a setting here, to answer them with ours.

They are not accepted in place of ours: many mean something slightly different, such as a count of minibatches instead of their rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

_RATE, _STEPS, _ENVS, _HORIZON, _ROWS = "optimizer.learning_rate", "steps", "vector.num_envs", "horizon", "minibatch"
_LINEAR = "linear lowers it to final_rate at the end, constant leaves it"
_NO = ""

# name there -> (libraries, name here, or none; what else there is to know)
NAMES: dict[str, tuple[str, str, str]] = {
    "lr": ("others", _RATE, ""),
    "total_timesteps": ("SB3, CleanRL and PufferLib", _STEPS, "counted over all environments"),
    "n_timesteps": ("SB3's zoo", _STEPS, "counted over all environments"),
    "timesteps": ("others", _STEPS, "counted over all environments"),
    "n_envs": ("SB3", _ENVS, ""),
    "n_steps": ("SB3", _HORIZON, "steps of each environment per batch, as there"),
    "num_steps": ("CleanRL", _HORIZON, "steps of each environment per batch, as there"),
    "bptt_horizon": ("PufferLib", _HORIZON, "steps of each environment per batch, as there"),
    "minibatch_size": ("PufferLib", _ROWS, "in rows, as there"),
    "max_minibatch_size": ("PufferLib", _ROWS, "in rows; there is one size"),
    "num_minibatches": ("CleanRL", _ROWS, "in rows instead of a count: num_envs x horizon / num_minibatches"),
    "n_minibatches": ("others", _ROWS, "in rows instead of a count: num_envs x horizon / n_minibatches"),
    "n_epochs": ("SB3", "epochs", ""),
    "update_epochs": ("CleanRL and PufferLib", "epochs", ""),
    "gae_lambda": ("SB3, CleanRL and PufferLib", "ppo.lam", ""),
    "clip_range": ("SB3", "ppo.clip", ""),
    "clip_coef": ("CleanRL and PufferLib", "ppo.clip", ""),
    "clip_range_vf": ("SB3", "ppo.value_clip", "none for no clipping"),
    "clip_vloss": ("CleanRL", "ppo.value_clip", "a number, the range, instead of a switch; none for no clipping"),
    "vf_clip_coef": ("PufferLib", "ppo.value_clip", "none for no clipping"),
    "ent_coef": ("SB3, CleanRL and PufferLib", "ppo.entropy_coef", ""),
    "vf_coef": ("SB3, CleanRL and PufferLib", "ppo.value_coef", ""),
    "norm_adv": ("CleanRL", "ppo.normalize_advantage", "minibatch, batch or none instead of a switch"),
    "vtrace_rho_clip": ("PufferLib", "ppo.rho_clip", "with ppo.vtrace"),
    "vtrace_c_clip": ("PufferLib", "ppo.c_clip", "with ppo.vtrace"),
    "prio_alpha": ("PufferLib", "ppo.priority", ""),
    "prio_beta0": ("PufferLib", "ppo.priority_correction", ""),
    "buffer_size": ("SB3 and CleanRL", "replay.size", "in rows, as there"),
    "learning_starts": ("SB3 and CleanRL", "replay.start", "in rows, as there"),
    "train_freq": ("SB3", "replay.every", "in steps of each environment"),
    "gradient_steps": ("SB3", "replay.ratio", "in rows learned from for each row played: the rows of a minibatch for one step"),
    "anneal_lr": ("CleanRL and PufferLib", "optimizer.schedule", _LINEAR),
    "optimizer_class": ("SB3", "optimizer.name", "adam or muon"),
    "adam_beta1": ("PufferLib", "optimizer.beta1", ""),
    "adam_beta2": ("PufferLib", "optimizer.beta2", ""),
    "adam_eps": ("PufferLib", "optimizer.eps", ""),
    "policy_kwargs": ("SB3", "policy", "its settings, for example policy.hidden and policy.activation"),
    "net_arch": ("SB3", "policy.hidden", "policy.share for one network of actor and critic"),
    "hidden_size": ("PufferLib", "policy.hidden", "a size for each layer; policy.core_size is that of an LSTM"),
    "load_model_path": ("PufferLib", "policy.start", "policy.safetensors of a checkpoint; --resume RUN goes on with a run"),
    "env_id": ("SB3 and CleanRL", "env", "it also comes first: fugu train ENV, fugu.train(ENV)"),
    "env_name": ("PufferLib", "env", "it also comes first: fugu train ENV, fugu.train(ENV)"),
    "vec_env_cls": ("SB3", "vector.backend", "serial or process, among others"),
    "cuda": ("CleanRL", "device", "cuda or cpu"),
    "tensorboard_log": ("SB3", "log.tensorboard", "a switch; the events go into the run's folder"),
    "track": ("CleanRL", "log.wandb", "online or offline"),
    "wandb_project_name": ("CleanRL", "log.wandb_project", ""),
    "verbose": ("SB3", "log.board", "board, lines or off"),
    "progress_bar": ("SB3", "log.board", "board, lines or off"),
    "log_interval": ("SB3", "log.interval", "in seconds instead of batches"),
    "eval_freq": ("SB3", "eval.every", "in updates instead of steps"),
    "n_eval_episodes": ("SB3", "eval.episodes", ""),
    "save_freq": ("SB3", "checkpoint.every", "in updates instead of steps"),
    "save_model": ("CleanRL", "checkpoint.every", "checkpoints are always written; this says how often"),
    "checkpoint_interval": ("PufferLib", "checkpoint.every", "in updates, as there"),
    "capture_video": ("CleanRL", _NO, "fugu video RUN, or run.video(), writes one of any run afterwards"),
    "torch_deterministic": ("CleanRL and PufferLib", _NO, "the same seed gives the same run without it"),
    "use_sde": ("SB3", _NO, "there is no such exploration; policy.std state lets the deviation depend on what is seen"),
    "sde_sample_freq": ("SB3", _NO, "there is no such exploration"),
    "callback": ("SB3", _NO, "fugu.train(..., callbacks=[...]) takes functions and objects in a list"),
    "exp_name": ("CleanRL", _NO, "a run has a name: --name NAME, in Python name=NAME"),
    "tb_log_name": ("SB3", _NO, "a run has a name: --name NAME, in Python name=NAME"),
    "tag": ("PufferLib", _NO, "a run has tags: --tag TAG, in Python tags=[TAG]"),
    "stats_window_size": ("SB3", _NO, "returns are means over 100 episodes"),
}  # fmt: skip
TWICE = {"batch_size": ("rows of a gradient step", "minibatch", "environments that act at once", "vector.batch_size")}
"""names of theirs that a setting of ours has as well, and that would pass unnoticed -> what they mean there, our name for that, what
ours means, its whole name"""

_PREFIXES = {"train": "", "vec": "vector", "rnn": "policy", "base": ""}
"""sections of PufferLib -> ours"""


def ours(name: str, paths: Collection[tuple[str, ...]], show: Callable[[str], str]) -> str:
    """Return what fugu calls a setting that others call ``name``, or nothing. ``paths``: the fields there are; ``show``: as typed."""
    plain = name.replace("-", "_")
    section, _, rest = plain.rpartition(".")
    there, here, more = NAMES.get(plain, NAMES.get(rest, ("", "", ""))) if section in ("", *_PREFIXES) else ("", "", "")
    if section in _PREFIXES and not there:  # by the same name in another section
        same = [path for path in paths if path[-1] == rest]
        near = [path for path in same if path[0] == _PREFIXES[section]] or same
        there, here = ("PufferLib", ".".join(near[0])) if len(near) == 1 else ("", "")
    more = re.sub(r"\b[a-z]+[._][a-z_]+(?:\.[a-z_]+)?\b", lambda found: _shown(found[0], paths, show), more)
    if not there or (here and tuple(here.split(".")) not in paths):
        return ""
    if not here:
        return f"{show(name)} ({there}): fugu has no such setting; {more}"
    last = here.rpartition(".")[2]
    alone = "." in here and sum(path[-1] == last for path in paths) == 1
    also = f" (or {show(last)})" if alone else ""
    whose = "" if there == "others" else f" ({there})"
    return f"{show(name)}{whose}: fugu calls it {show(here)}{also}" + (f"; {more}" if more else "")


def unclear(name: str, paths: Collection[tuple[str, ...]], show: Callable[[str], str]) -> str:
    """Return what to type instead of a name, without its section, that means one thing here and another in other libraries."""
    theirs, here, mine, whole = TWICE.get(name.replace("-", "_"), ("", "", "", ""))
    if not here or not {tuple(here.split(".")), tuple(whole.split("."))} <= set(paths):
        return ""
    return f"{show(name)} could be {show(here)}, {theirs}, as in SB3, or {show(whole)}, {mine}"


def _shown(word: str, paths: Collection[tuple[str, ...]], show: Callable[[str], str]) -> str:
    return show(word) if tuple(word.split(".")) in paths else word
