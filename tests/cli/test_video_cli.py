"""``fugu video``: whole episodes, sizes, rates, and environments that cannot be drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fugu
from fugu.cli.main import main
from fugu.errors import ConfigError
from fugu.run.player import Player

PAINTED = """
import gymnasium, numpy as np
from gymnasium import spaces

class Painted(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}
    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None, fail_at=99):
        self.render_mode, self.fail_at = render_mode, fail_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(1, np.float32), 1.0, self.count == 9, False, {}

    def render(self):
        if self.count == self.fail_at:
            raise ValueError("out of paint")
        if self.render_mode == "rgb_array":
            return np.full((45, 71, 3), 20 * self.count, np.uint8)

class Blind(Painted):
    render = gymnasium.Env.render
    def __init__(self):
        super().__init__()
"""


def frames_of(path: Path) -> tuple[dict, list[np.ndarray]]:
    reader = pytest.importorskip("imageio_ffmpeg").read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta, [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("painted")
    (folder / "painted.py").write_text(PAINTED)
    for name in ("Blind", "Painted"):
        env = f"{folder}/painted.py:{name}"
        fugu.train(env, runs=folder / name, steps=64, horizon=8, num_envs=2, minibatch=16, backend="serial", board="off")
    return folder


def test_a_video_shows_every_step_of_the_episode(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["video", "latest", "--runs", str(runs)]) == 0
    path = Path(capsys.readouterr().out.strip())
    run = fugu.Run("latest", runs)
    assert path.parent == run.folder.videos and [p.name for p in run.folder.videos.iterdir()] == [path.name]
    meta, frames = frames_of(path)
    with Player(run, seed=1, render=True) as player:
        expected = []
        for scene in player.play():
            expected.append(scene.picture())
            if scene.moment.over:
                break
    assert meta["fps"] == 30 and len(frames) == len(expected) == scene.moment.step + 1 > 8
    for got, want in zip(frames, expected, strict=True):
        assert np.abs(got.astype(int) - want).mean() < 4  # what the codec loses


def test_sizes_are_even_and_rate_and_scale_are_as_asked(painted: Path, tmp_path: Path) -> None:
    run = fugu.Run("latest", painted / "Painted")
    meta, frames = frames_of(run.video(tmp_path / "a.mp4", scale=1))
    assert meta["size"] == (72, 46) and meta["fps"] == 12 and len(frames) == 10
    assert [round(frame.mean() / 20) for frame in frames] == list(range(10))
    meta, frames = frames_of(run.video(tmp_path / "b.mp4", fps=5, max_frames=4))
    assert meta["size"] == (284, 180) and meta["fps"] == 5 and len(frames) == 4


def test_a_gif_has_the_same_frames(painted: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = fugu.Run("latest", painted / "Painted").video(tmp_path / "a.gif", scale=1)
    with image.open(path) as gif:
        assert gif.n_frames == 10 and gif.size == (72, 46) and gif.info["loop"] == 0
        for number in range(10):
            gif.seek(number)
            assert gif.info["duration"] == 80 and np.abs(np.asarray(gif.convert("RGB")) - 20.0 * number).max() <= 4


def test_an_environment_that_cannot_be_drawn_is_one_line(painted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["video", "--runs", str(painted / "Blind")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Blind cannot be drawn") and "render()" in err and len(err.splitlines()) == 1
    assert not list(painted.glob("Blind/*/videos/*"))


def test_a_video_that_fails_half_way_leaves_nothing(painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x.mp4", "x.gif"):
        out = tmp_path / name
        assert main(["video", "--runs", str(painted / "Painted"), "-o", str(out), "--env.fail-at", "4"]) == 1
        assert "out of paint" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["-o", "x.avi"], "try x.mp4"),
        (["-o", "."], "a video is an .mp4 or a .gif file, got '.'; try video.mp4"),
        (["--max-frames", "0"], "at least 1"),
        (["--scale", "0"], "at least 1"),
        (["--checkpoint", "bets"], "Did you mean 'best'"),
        (["--fsp", "3"], "--fps"),
    ],
)
def test_wrong_calls_of_video_are_one_message(
    arguments: list[str], part: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["video", "--runs", str(trained), *arguments]) == 2
    out, err = capsys.readouterr()
    assert part in err and "Traceback" not in err and out == ""


@pytest.mark.parametrize(("name", "module"), [("a.mp4", "imageio_ffmpeg"), ("a.gif", "PIL.GifImagePlugin")])
def test_without_the_extra_it_says_what_to_install(
    name: str, module: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["video", "--runs", str(trained), "-o", name]) == 1
    assert capsys.readouterr().err.strip().endswith('pip install "fugu-rl[video]"')


def test_a_place_that_cannot_be_written_is_one_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "afile").touch()
    assert main(["video", "--runs", str(trained), "-o", str(tmp_path / "afile" / "x.mp4")]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"{tmp_path}/afile/x.mp4 cannot be written: ") and len(err.splitlines()) == 1


def test_a_huge_scale_is_one_line(painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["video", "--runs", str(painted / "Painted"), "-o", str(tmp_path / "x.gif"), "--scale", "1000000"]) == 2
    said = "scale=1000000 makes pictures of 71 x 45 larger than 8192 pixels; use at most 115\n"
    assert capsys.readouterr().err == said and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [{"max_frames": 2.5}, {"scale": "2"}, {"fps": "fast"}, {"seed": "a"}, {"env_kwargs": 3}])
def test_settings_of_another_kind_are_named(wrong: dict, trained: Path) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"{name}=.* must be "):
        fugu.Run("latest", trained).video(**wrong)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo '[libx264 @ 0x55] broken header' >&2\necho 'Conversion failed!' >&2\nexit 1", "broken header"),
        ("echo 'ffmpeg version 7.0' >&2\ncat > /dev/null\necho 'write: No space left' >&2\nexit 1", "No space left"),
        ("head -c 100 > /dev/null\nexit 3", "ffmpeg ended with code 3"),
    ],
    ids=["at once", "at the end", "without a word"],
)  # fmt: skip
def test_an_encoder_that_fails_is_one_line_and_leaves_no_file(
    script: str, said: str, painted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    encoder = tmp_path / "ffmpeg"
    encoder.write_text(f"#!/bin/sh\n{script}\n")
    encoder.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(encoder))
    out = tmp_path / "x.mp4"
    assert main(["video", "--runs", str(painted / "Painted"), "-o", str(out)]) == 1
    err = capfd.readouterr().err
    assert err.startswith(f"{out} cannot be written: ") and said in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [encoder]
