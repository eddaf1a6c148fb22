"""One episode of a run's policy as an mp4 or a gif, without a display.

Frames go to the file one by one as they are drawn, so that memory does not grow with the length of the episode. The file appears under
its name when it is whole.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fugu.config import fitting
from fugu.errors import ConfigError, FuguError, MissingExtra
from fugu.run.run import Run
from fugu.run.scene import frame_rate

if TYPE_CHECKING:
    from fugu.run.imagine import Imagined
    from fugu.run.player import Player

MAX_FRAMES = 3000
WIDTH = 256
"""least width of a picture in pixels, reached by a whole factor, by default"""
MAX_SIDE = 8192
"""longest side that a picture may be enlarged to, in pixels: more is beyond what codecs and players take"""

Writer = Generator[None, np.ndarray, None]


def record(
    run: Run,
    path: str | Path | None = None,
    *,
    which: str | int = "latest",
    seed: int = 1,
    greedy: bool = False,
    max_frames: int = MAX_FRAMES,
    fps: float | None = None,
    scale: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    imagine: bool = False,
) -> Path:
    """Play an episode (its first ``max_frames`` pictures) and write it to ``path``, by default in the run's ``videos/``.

    ``fps``: pictures per second, by default the environment's own rate, or 30. ``scale``: a whole factor to enlarge pictures by.
    ``imagine``: show beside it what a world model expected to see (``run/imagine.py``).
    """
    max_frames = fitting("max_frames", max_frames, int, 1)
    scale = fitting("scale", scale, int | None, 1)
    fps = fitting("fps", fps, float | None, 0.1)
    suffix = Path(path).suffix.lower() if path is not None else ".mp4"
    if suffix not in (".mp4", ".gif"):
        given = Path(str(path))
        example = given.with_suffix(".mp4") if given.name.strip(".") else given / "video.mp4"
        raise ConfigError(f"a video is an .mp4 or a .gif file, got {str(path)!r}; try {example}")
    open_writer = _mp4 if suffix == ".mp4" else _gif
    _need(suffix)
    from fugu.run.player import Player

    with Player(run, which, seed=seed, render=True, env_kwargs=env_kwargs) as player:
        dreams = None
        if imagine:
            from fugu.run.imagine import Imagined  # imports torch

            dreams = Imagined(player.algorithm, run.config.algorithm)
        kind = "imagined" if imagine else "seed"
        target = Path(path) if path is not None else run.folder.videos / f"step-{player.step}-{kind}-{seed}.mp4"
        rate = fps or frame_rate(player.vec)
        part = target.with_name(f".{target.stem}-{os.getpid()}{suffix}")
        writer: Writer | None = None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)  # it may be a link
            for scene in itertools.islice(player.play(greedy=greedy), max_frames):
                picture = _enlarged(scene.picture(), scale)
                if dreams is not None:
                    picture = _beside(picture, dreams, player)
                if writer is None:
                    shape = picture.shape
                    writer = open_writer(part, shape[1], shape[0], rate)
                    next(writer)
                if picture.shape != shape:
                    raise FuguError(
                        f"{player.vec.spec.name}: pictures must stay {shape[1]} x {shape[0]}, "
                        f"got one of {picture.shape[1]} x {picture.shape[0]}"
                    )
                writer.send(picture)
                if scene.moment.over:
                    break
            assert writer is not None
            writer.close()
            os.replace(part, target)
        except OSError as error:
            raise FuguError(f"{target} cannot be written: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):  # or the first error would be hidden
                if writer is not None:
                    writer.close()
                part.unlink(missing_ok=True)
    return target


def _need(suffix: str) -> None:
    try:
        if suffix == ".mp4":
            import imageio_ffmpeg  # noqa: F401
        else:
            import PIL.GifImagePlugin  # noqa: F401
    except ImportError:
        raise MissingExtra(f"writing {suffix}", "video") from None


def _beside(picture: np.ndarray, dreams: Imagined, player: Player) -> np.ndarray:
    """Return the picture with what was expected beside it."""
    import torch

    rows = torch.from_numpy(player.vec.rows.obs[:1]).to(player.device)
    other = dreams.picture(rows, player.carried, picture.shape[0])
    return _even(np.concatenate([picture, other], 1))


def _enlarged(picture: np.ndarray, scale: int | None) -> np.ndarray:
    """Return the picture enlarged by a whole factor, and to even sizes, which most players need."""
    factor = scale if scale is not None else -(-WIDTH // picture.shape[1])
    if factor > 1:
        height, width = picture.shape[:2]
        largest = max(1, MAX_SIDE // max(height, width))
        if factor > largest:
            raise ConfigError(
                f"scale={factor} makes pictures of {width} x {height} larger than {MAX_SIDE} pixels; use at most {largest}"
            )
        picture = picture.repeat(factor, 0).repeat(factor, 1)
    return _even(picture)


def _even(picture: np.ndarray) -> np.ndarray:
    odd = [(0, size % 2) for size in picture.shape[:2]]
    return np.pad(picture, [*odd, (0, 0)], mode="edge") if (0, 1) in odd else picture


def _mp4(path: Path, width: int, height: int, fps: float) -> Writer:
    """Return a writer of H.264 by the ffmpeg that comes with the extra. An OSError holds the last line of what it complained about."""
    import imageio_ffmpeg

    try:
        program = imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise OSError(f"{error}") from None
    read = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps:.2f} -i - -an"
    write = "-c:v libx264 -pix_fmt yuv420p -crf 10 -preset veryfast"  # the pictures are simple: not worth a slower search
    command = [program, "-y", "-v", "error", *read.split(), *write.split(), str(path)]
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaints)
        except OSError as error:
            raise OSError(f"{program}: {error.strerror}") from None
        assert process.stdin is not None
        done = broken = False
        try:
            while True:
                process.stdin.write(np.ascontiguousarray((yield)).data)
        except GeneratorExit:
            done = True
        except OSError:
            done = broken = True  # it does not listen any more, and says why
        finally:
            if not done:
                process.kill()
            with contextlib.suppress(OSError):
                process.stdin.close()
            code = process.wait()
        if code or broken:
            complaints.seek(0)
            raise OSError(_complaint(complaints.read().decode("utf-8", "replace")) or f"ffmpeg ended with code {code}")


def _complaint(text: str) -> str:
    """Return the last line with something in it, without the part of ffmpeg and the address that it begins with."""
    lines = [re.sub(r"^(\[[^]]*\]\s*)+", "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and line != "Conversion failed!"]
    return lines[-1] if lines else ""


def _gif(path: Path, width: int, height: int, fps: float) -> Writer:
    """Return a writer that writes block by block: Pillow's own ``save_all`` keeps every frame until the end."""
    from PIL import GifImagePlugin, Image

    duration = 10 * max(2, round(100 / fps))  # milliseconds, in hundredths of a second; players slow down anything below two
    with open(path, "wb") as file:
        started = False
        try:
            while True:
                image = Image.fromarray((yield)).quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
                if not started:
                    for block in GifImagePlugin.getheader(image, info={"loop": 0})[0]:
                        file.write(block)
                    started = True
                for block in GifImagePlugin.getdata(image, duration=duration, include_color_table=True):
                    file.write(block)
        finally:
            file.write(b";")
