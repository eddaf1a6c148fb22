"""Mistakes in an algorithm of a user's own are one message before training: file, member and what to write."""

from __future__ import annotations

import pytest

import fugu
from fugu.cli import new_algorithm
from fugu.cli.main import main
from fugu.errors import ConfigError

START = new_algorithm.text("my_algo.py", "MyAlgo")

OPTIMIZER = """
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.optimizer = torch.nn.Linear(1, 1)

"""


def changed(before: str, after: str) -> str:
    assert before in START, before
    return START.replace(before, after)


MISTAKES = {
    "no base class": (
        START.replace("class MyAlgo(fugu.Algorithm)", "class MyAlgo"),
        "must be a class with fugu.Algorithm as its base",
    ),
    "loss is missing": (changed("def loss(self", "def compute(self"), "has no loss.*fugu new algorithm"),
    "loss is misspelt": (changed("def loss(self", "def los(self"), "has no loss. Did you mean 'los'"),
    "prepare is misspelt": (
        changed("def prepare(self", "def prepar(self"),
        "has prepar, which nothing calls. Did you mean 'prepare'",
    ),
    "act takes other things": (changed("def act(self, seen)", "def act(self, obs, mask)"), r"write def act\(self, seen\)"),
    "loss is no scalar": (
        changed("return loss, {", "return loss * batch['mask'], {"),
        r"loss must be a scalar, got float32\[2, 2\]",
    ),
    "loss is no pair": (changed("return loss, {", "return loss #"), "loss must return"),
    "loss is NaN": (changed("loss = policy +", "loss = float('nan') * policy +"), "loss is nan on rows of zeros"),
    "loss has no gradient": (changed("return loss, {", "return loss.detach(), {"), "carries no gradient"),
    "loss raises": (
        changed("bonus = mean(entropy)", "bonus = mean(entropyy)"),
        r"loss failed on .*NameError(.|\n)*line \d+: bonus",
    ),
    "a metric without its prefix": (changed('"loss/policy": policy', '"policy": policy'), "begins with loss/"),
    "a metric with a gradient": (changed("policy.detach(), ", "policy, "), "use value.detach"),
    "act returns something else": (
        changed("return fugu.Act(actions.to_env(action), carry, columns)", "return action"),
        "act must return fugu.Act",
    ),
    "an action of another shape": (
        changed("return fugu.Act(actions.to_env(action)", "return fugu.Act(actions.to_env(action)[:1]"),
        r"env_action of act must be a tensor \[2\], got",
    ),
    "a column of another length": (
        changed('"value": out.value}', '"value": out.value[:1]}'),
        r"columns\['value'\] of act must be a tensor with 2",
    ),
    "a column that environments write": (
        changed('"value": out.value}', '"value": out.value, "reward": out.value}'),
        "which environments write",
    ),
    "prepare returns something else": (changed("return batch.also(", "return dict("), "prepare must return a batch"),
    "a setting that nothing reads": (
        changed("    entropy: float = 0.01", "    speed: float = 1.0\n    entropy: float = 0.01"),
        "Config.speed is read by nothing",
    ),
    "a setting without a default": (
        changed("    entropy: float = 0.01", "    entropy: float"),
        "Config.entropy needs a default",
    ),
    "settings that can change": (changed("@dataclass(frozen=True, kw_only=True)", "@dataclass"), "Config must be frozen"),
    "settings that are no dataclass": (changed("@dataclass(frozen=True, kw_only=True)", ""), "Config must be a dataclass"),
    "a part with a name that is taken": (
        changed("    def act(self, seen)", OPTIMIZER + "    def act(self, seen)"),
        "give self.optimizer another",
    ),
    "weights in two places": (
        changed(
            "    def act(self, seen)",
            OPTIMIZER.replace("optimizer = torch.nn.Linear(1, 1)", "net = self.policy.net") + "    def act(self, seen)",
        ),
        "self.policy and self.net of the algorithm share weights",
    ),
    "networks in a list": (
        changed(
            "    def act(self, seen)",
            OPTIMIZER.replace("optimizer = torch.nn.Linear(1, 1)", "nets = [torch.nn.Linear(1, 1)]")
            + "    def act(self, seen)",
        ),
        "use nn.ModuleList",
    ),
    "merit takes other things": (
        START + "\n    def merit(self):\n        return 0.0\n",
        r"write def merit\(self, score, costs\)",
    ),
    "build returns nothing": (
        START + "\n    @classmethod\n    def build(cls, setup):\n        pass\n",
        "build must return the algorithm",
    ),
    "source returns nothing": (START + "\n    def source(self, envs):\n        pass\n", "source must return a source"),
    "a constructor that raises": (
        changed("    def act(self, seen)", OPTIMIZER.replace("self.optimizer =", "1 / 0 #") + "    def act(self, seen)"),
        "ZeroDivisionError",
    ),
    "no Python": (START + "\ndef (", "my_algo.py.*SyntaxError"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_anything_starts(mistake, tmp_path):
    source, said = MISTAKES[mistake]
    file = tmp_path / "my_algo.py"
    file.write_text(source)
    with pytest.raises(ConfigError, match=said) as raised:
        fugu.train("cartpole", algorithm=f"{file}:MyAlgo", steps=1000, runs=tmp_path / "runs", num_envs=4, minibatch=None)
    assert "my_algo.py" in str(raised.value) or mistake == "weights in two places"
    assert not (tmp_path / "runs").exists() or not [*(tmp_path / "runs").iterdir()]


def test_a_file_or_class_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.py'?: no such file"):
        fugu.train("cartpole", algorithm="nowhere.py:MyAlgo", runs=tmp_path)
    (tmp_path / "my_algo.py").write_text(START)
    with pytest.raises(ConfigError, match="has no 'MyAlg'. Did you mean 'MyAlgo'"):
        fugu.train("cartpole", algorithm=f"{tmp_path}/my_algo.py:MyAlg", runs=tmp_path)


def test_an_error_amid_training_names_the_file_and_how_to_go_on(tmp_path):
    broken = START.replace(
        "        mask = batch[",
        "        self.count = getattr(self, 'count', 0) + 1\n        1 / (self.count != 9)\n        mask = batch[",
    )
    (tmp_path / "my_algo.py").write_text(broken)
    settings = {"steps": 40_000, "num_envs": 16, "minibatch": None, "epochs": 1, "horizon": 32, "log.board": "off"}
    with pytest.raises(fugu.FuguError, match=r"MyAlgo raised ZeroDivisionError(.|\n)*my_algo.py, line \d+(.|\n)*--resume"):
        fugu.train("cartpole", algorithm=f"{tmp_path}/my_algo.py:MyAlgo", runs=tmp_path / "runs", **settings)


def test_the_file_that_is_written_trains_with_its_settings_and_is_evaluated_and_gone_on_with(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "algorithm", "my_algo.py"]) == 0
    assert "fugu train cartpole --algorithm my_algo.py:MyAlgo --entropy 0.02" in capsys.readouterr().out
    options = ["--num-envs", "16", "--minibatch", "None", "--log.board", "off", "--horizon", "16"]
    train = ["train", "cartpole", "--algorithm", "my_algo.py:MyAlgo", "--steps", "3000", *options]
    assert main([*train, "--entropy", "0.02"]) == 0
    run = fugu.Run("latest")
    assert run.config.settings.entropy == 0.02 and run.config.algorithm == f"{tmp_path}/my_algo.py:MyAlgo"
    assert "Weight of the entropy bonus" in run.folder.config.read_text()
    assert main(["train", "--resume", "latest", "--steps", "6000", "--my-algo.entropy", "0.01", "--log.board", "off"]) == 0
    assert fugu.Run("latest").config.settings.entropy == 0.01
    assert main(["eval", "latest", "--episodes", "4"]) == 0
    assert main([*train, "--help"]) == 0
    assert "--my-algo.entropy" in capsys.readouterr().out
    assert main([*train, "--entorpy", "1"]) == 2


def test_an_existing_file_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("kept")
    assert main(["new", "algorithm", str(tmp_path / "mine.py")]) == 1
    assert (tmp_path / "mine.py").read_text() == "kept" and "left alone" in capsys.readouterr().err
    assert main(["new", "algorithm", str(tmp_path / "mine.txt")]) == 2


def test_an_algorithm_may_be_built_on_one_of_ours(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from fugu.algorithm.ppo import PPO\n\nclass Mine(PPO):\n"
        "    def finish(self, batch):\n        return {**super().finish(batch), 'loss/mine': batch['reward'].mean()}\n"
    )
    settings = {"steps": 600, "num_envs": 8, "minibatch": None, "log.board": "off"}
    run = fugu.train("cartpole", algorithm=f"{tmp_path}/mine.py:Mine", runs=tmp_path / "runs", gamma=0.9, **settings)
    assert run.config.ppo.gamma == 0.9 and "loss/mine" in run.metrics()[-1]
