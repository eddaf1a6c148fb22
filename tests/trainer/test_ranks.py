"""Several ranks: in ``exact`` mode the bits do not depend on how many processes share them out, and all of them stay alike."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fugu.errors import ConfigError, EnvError
from fugu.ranks import Ranks
from fugu.rollout.agreed import RankFailed, agreed
from fugu.rollout.source import Stopped
from fugu.together import Hall, RankLost, Together, join
from fugu.trainer import checkpoint
from tests.trainer.ranks_of_process import ALL, config_of, train


def together(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """Do ``work`` on ``size`` ranks of this process, each in a thread. Returns what each returned or raised."""
    hall = Hall(size, 300)
    found: list[Any] = [None] * size

    def one(place: int) -> None:
        ranks = Together(place, None, hall, exact=True)
        try:
            found[place] = work(ranks)
        except BaseException as error:
            found[place] = error
            ranks.leave()

    threads = [threading.Thread(target=one, args=(place,)) for place in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def processes(size: int, *words: str, timeout: float = 60, **environment: str) -> list[subprocess.Popen[str]]:
    """Start ``size`` processes of ``tests.trainer.ranks_of_process``, as torchrun would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port), "TIMEOUT": str(timeout), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "tests.trainer.ranks_of_process", *words]
    return [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


# --- one object ---


def test_ranks_of_a_process_add_up_in_order_and_decide_together():
    def work(ranks: Ranks) -> Any:
        x = torch.tensor([1e8, 1.0, -1e8][ranks.rank])
        flags = [ranks.any(ranks.rank == 2), ranks.any(False)]
        return ranks.sum(x).item(), flags, ranks.least(5 - ranks.rank), ranks.gather(ranks.rank), ranks.broadcast(ranks.rank)

    one = (torch.tensor(1e8) + 1.0 - 1e8).item(), [True, False], 3, [0, 1, 2], 0
    assert together(3, work) == [one] * 3


def test_what_one_rank_runs_into_all_know():
    def work(ranks: Ranks) -> Any:
        def play() -> int:
            if ranks.rank == 1:
                raise EnvError("environment 3 broke")
            return 5

        return agreed(ranks, play)

    first, second = together(2, work)
    assert isinstance(first, RankFailed) and str(first) == "rank 1 of 2 raised EnvError: environment 3 broke"
    assert isinstance(second, EnvError)


def test_a_stop_of_one_rank_stops_all():
    def work(ranks: Ranks) -> Any:
        def play() -> int:
            if ranks.rank == 0:
                raise Stopped
            return 5

        return agreed(ranks, play)

    assert [type(each) for each in together(2, work)] == [Stopped, Stopped]


def test_a_rank_that_ends_early_is_not_waited_for():
    def work(ranks: Ranks) -> Any:
        if ranks.rank == 1:
            raise ValueError("gone")
        return ranks.any(False)

    found = together(2, work)
    assert isinstance(found[0], RankLost) and isinstance(found[1], ValueError)


def test_one_process_is_alone_unless_it_has_several_shards():
    plain = join(mode="all_reduce", shards=None, timeout=5, cuda=False)
    assert [type(each) for each in plain] == [Ranks]
    several = join(mode="exact", shards=3, timeout=5, cuda=False)
    assert [(each.rank, each.size) for each in several] == [(0, 3), (1, 3), (2, 3)]


# --- training ---


@pytest.mark.parametrize("case", ALL)
def test_all_ranks_learn_the_same(case, tmp_path):
    first, second = together(2, lambda ranks: train(config_of(case), ranks, tmp_path))
    assert first == second


@pytest.mark.parametrize("case", ["ppo", "self_play", "sac", "grpo"])
def test_a_run_of_two_ranks_goes_on_as_if_it_had_not_ended(case, tmp_path):
    config = config_of(case)
    whole = together(2, lambda ranks: train(config, ranks, tmp_path / "whole"))
    together(2, lambda ranks: train(config, ranks, tmp_path / "cut", updates=5))
    path = checkpoint.find(tmp_path / "cut")
    updates = checkpoint.load(path).state["updates"]
    again = together(2, lambda ranks: train(config, ranks, tmp_path / "cut", resume=path))
    assert again[0]["weights"] == again[1]["weights"] == whole[0]["weights"]
    assert again[0]["metrics"] == whole[0]["metrics"][updates:]


def test_another_number_of_ranks_goes_on_with_new_environments_and_says_so(tmp_path):
    config = config_of("ppo")
    together(2, lambda ranks: train(config, ranks, tmp_path, updates=5))
    path = checkpoint.find(tmp_path)
    updates = checkpoint.load(path).state["updates"]
    with pytest.warns(RuntimeWarning, match="saved by 2 learners and goes on with 1: its environments start anew"):
        alone = train(config, Ranks(), tmp_path, resume=path)
    assert alone["metrics"][0]["updates"] == updates + 1


def test_shards_are_shared_out_evenly(monkeypatch):
    monkeypatch.setattr("fugu.together._worlds", [type("World", (), {"size": 2, "rank": 0})()])
    monkeypatch.setattr("fugu.together.launched", lambda: 2)
    with pytest.raises(ConfigError, match=r"ranks.shards=3 cannot be shared out to 2 processes; try --ranks.shards 4"):
        join(mode="exact", shards=3, timeout=5, cuda=False)


@pytest.mark.cluster
def test_two_processes_learn_what_one_does_and_a_dead_rank_is_named(tmp_path):
    """One pair of processes for all algorithms, since starting them takes longest; at its end a rank is killed."""
    first, second = processes(2, "exact", *ALL, "killed")
    lines = second.stdout.read().splitlines()  # type: ignore[union-attr]
    second.wait(600)
    out, err = first.communicate(timeout=600)
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 75, err
    assert err.strip().splitlines()[-1] == f"rank 0 goes no further: rank 1 of 2 on {socket.gethostname()} ended"
    theirs = [json.loads(line) for line in out.splitlines()]
    assert theirs == [json.loads(line) for line in lines]
    for case, found in zip(ALL, theirs, strict=True):
        mine = together(2, lambda ranks, case=case: train(config_of(case), ranks))
        assert not [each for each in mine if isinstance(each, BaseException)], (case, mine)
        assert json.loads(json.dumps(mine[0])) == found, case
