"""What is saved comes back bit for bit; the newest whole one is found; rotation keeps what it must."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from fugu.trainer import checkpoint
from fugu.trainer.checkpoint import CheckpointError
from fugu.trainer.checkpoint_format import DTYPES, MANIFEST

STATE = {"updates": 7, "rng": {"key": 2**127 + 1, "name": "PCG64"}, "schedule": [0.1, None, True], "name": "größe"}


def tensors(value: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "policy": {"layer.weight": torch.full((3, 2), value), "layer.bias": torch.zeros(3)},
        "optimizer": {"0.step": torch.tensor(value)},
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(0, 256, (3, 5, 8), dtype=torch.uint8, generator=generator)  # NaNs with payloads among them
    value = bits.bool() if dtype is torch.bool else bits.view(dtype)
    path = checkpoint.save(tmp_path, 0, {"all": {"x": value, "scalar": value[0, 0, 0], "empty": value[:0]}}, {})
    loaded = checkpoint.load(path).tensors["all"]
    assert loaded["x"].dtype == dtype and loaded["x"].shape == value.shape
    assert torch.equal(loaded["x"].view(torch.uint8), value.view(torch.uint8))
    assert loaded["scalar"].shape == () and loaded["empty"].shape == value[:0].shape


def test_state_and_groups_come_back_with_nothing_added(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 123, {**tensors(), "nothing": {}}, STATE)
    loaded = checkpoint.load(path)
    assert path.name == "step_000000123" and loaded.path == path
    assert (loaded.step, loaded.state) == (123, STATE)
    assert {group: sorted(named) for group, named in loaded.tensors.items()} == {
        "policy": ["layer.bias", "layer.weight"],
        "optimizer": ["0.step"],
        "nothing": [],
    }


def test_views_tied_weights_and_gradients_are_saved_as_what_they_show(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4).requires_grad_()
    named = {
        "whole": whole,
        "tied": whole,
        "transposed": whole.T,
        "column": whole[:, 1],
        "tail": whole[1:],
        "parameter": torch.nn.Parameter(whole),
    }
    loaded = checkpoint.load(checkpoint.save(tmp_path, 1, {"policy": named}, {})).tensors["policy"]
    for name, tensor in named.items():
        assert torch.equal(loaded[name], tensor.detach()), name
    alone = checkpoint.load(checkpoint.save(tmp_path, 2, {"policy": {"tail": whole[1:, :2]}, "other": {"row": whole[1]}}, {}))
    assert torch.equal(alone.tensors["policy"]["tail"], whole[1:, :2]) and torch.equal(alone.tensors["other"]["row"], whole[1])
    loaded["tied"].fill_(9)
    assert torch.equal(loaded["whole"], whole.detach()), "what was loaded shares no memory and can be written"


def test_the_same_content_gives_the_same_files(tmp_path: Path) -> None:
    first, second = (checkpoint.save(tmp_path / name, 1, tensors(), STATE) for name in "ab")
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(6):
        checkpoint.save(tmp_path, step, tensors(step), {}, keep=2, best=step in (0, 1))
    assert checkpoint.steps(tmp_path) == [1, 4, 5]
    assert checkpoint.find(tmp_path).name == "step_000000005"
    assert checkpoint.load(checkpoint.find(tmp_path, "best")).tensors["policy"]["layer.weight"][0, 0] == 1
    assert checkpoint.find(tmp_path, 4) == checkpoint.find(tmp_path, "4") == tmp_path / "step_000000004"


def test_newest_is_by_step_not_by_clock(tmp_path: Path) -> None:
    for step in (9, 1_000_000_000, 10):
        checkpoint.save(tmp_path, step, tensors(), {})
    os.utime(tmp_path / "step_1000000000", (0, 0))
    assert checkpoint.load(checkpoint.find(tmp_path)).step == 1_000_000_000


def test_a_new_checkpoint_is_kept_even_if_later_steps_fill_the_folder(tmp_path: Path) -> None:
    for step in (10, 20, 5):
        path = checkpoint.save(tmp_path, step, tensors(), {}, keep=2)
    assert path.is_dir() and checkpoint.steps(tmp_path) == [5, 10, 20]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 5, tensors(1), {"n": 1}, best=True)
    path = checkpoint.save(tmp_path, 5, tensors(2), {"n": 2})
    assert checkpoint.load(path).state == {"n": 2} == checkpoint.load(checkpoint.find(tmp_path, "best")).state
    assert sorted(os.listdir(tmp_path)) == [".lock", "step_000000005"]


def test_truncating_forgets_later_checkpoints_and_a_later_best(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, tensors(), {}, best=step == 3)
    checkpoint.truncate(tmp_path, after=2)
    assert checkpoint.steps(tmp_path) == [1, 2]
    with pytest.raises(CheckpointError, match="known as the best: use latest.*100 episodes.*--eval.every"):
        checkpoint.find(tmp_path, "best")
    checkpoint.save(tmp_path, 2, tensors(), {}, best=True)
    checkpoint.truncate(tmp_path, after=2)
    assert checkpoint.find(tmp_path, "best").name == "step_000000002"
    checkpoint.truncate(tmp_path / "not there", after=2)


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        checkpoint.find(tmp_path / "not there")
    for step in (10, 20, 30, 90):
        checkpoint.save(tmp_path, step, tensors(), {}, keep=9)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 25; the nearest: \[10, 20, 30\]"):
        checkpoint.find(tmp_path, 25)
    with pytest.raises(CheckpointError, match="must be latest, best or a step"):
        checkpoint.find(tmp_path, "newest")
    with pytest.raises(CheckpointError, match="expected a folder"):
        checkpoint.load(tmp_path / "step_000000011")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "step=-1"),
        ({"step": 1.0}, "step=1.0"),
        ({"keep": 0}, "keep=0"),
        ({"tensors": {"../evil": {}}}, "'../evil'"),
        ({"tensors": {"Policy": {}}}, "'Policy'"),
        ({"tensors": {"policy": {"x": torch.zeros(1, dtype=torch.complex64)}}}, r"\['x'\] is torch.complex64.*float32"),
        ({"tensors": {"policy": {"x": 1.0}}}, r"\['x'\] is float"),
        ({"tensors": {"policy": {"__metadata__": torch.zeros(1)}}}, "__metadata__"),
        ({"state": {"a": {"b": [1.0, float("nan")]}}}, r"state\['a'\]\['b'\]\[1\] is nan"),
        ({"state": {"a": {1: 2}}}, r"state\['a'\] has the key 1"),
        ({"state": {"a": torch.zeros(1)}}, r"state\['a'\] is a Tensor.*belongs in tensors"),
    ],
)
def test_what_could_not_be_read_back_is_refused_before_anything_is_written(tmp_path: Path, change: dict, message: str) -> None:
    arguments: dict = {"step": 1, "tensors": tensors(), "state": {}} | change
    with pytest.raises(CheckpointError, match=message):
        checkpoint.save(tmp_path / "checkpoints", **arguments)
    assert not (tmp_path / "checkpoints").exists()


def test_minor_versions_are_read_and_major_ones_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fugu.trainer.checkpoint_format.VERSION", (1, 9))
    minor = checkpoint.save(tmp_path, 1, tensors(), STATE)
    monkeypatch.setattr("fugu.trainer.checkpoint_format.VERSION", (2, 0))
    major = checkpoint.save(tmp_path, 2, tensors(), STATE)
    monkeypatch.undo()
    assert checkpoint.load(minor).state == STATE
    with pytest.raises(CheckpointError, match=r"format 2\.0, written by fugu .*reads format 1: pip install --upgrade"):
        checkpoint.load(major)
    assert json.loads((major / MANIFEST).read_text())["step"] == 2


def test_names_with_spaces_and_letters_of_any_alphabet_work(tmp_path: Path) -> None:
    folder = tmp_path / "mein größter Lauf 🐡"
    assert checkpoint.load(checkpoint.save(folder, 1, tensors(), {})).step == 1
