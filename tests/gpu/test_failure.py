"""A GPU that is full or fails ends a training with one message, not with a traceback."""

from __future__ import annotations

import pytest
import torch

import fugu.run.train
from fugu.cli.main import main

FULL = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 3.00 GiB is free. "
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True."
)
ILLEGAL = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in the documentation\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError(FULL), ("Tried to allocate 20.00 GiB", "3.00 GiB is free", "--num-envs")),
        (torch.AcceleratorError(ILLEGAL), ("an illegal memory access", "--resume latest")),
    ],
)
def test_a_gpu_that_fails_is_one_line(error, said, tmp_path, monkeypatch, capsys):
    def fails(*arguments, **settings):
        raise error

    monkeypatch.setattr(fugu.run.train, "make_trainer", fails)
    assert main(["train", "cartpole", "--runs", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert all(part in err for part in said)
    assert "PYTORCH" not in err and "Search for" not in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so_and_what_to_do(tmp_path, capsys):
    assert main(["train", "cartpole", "--device", "cuda", "--runs", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "fugu doctor" in err and "--device cpu" in err
    assert not list(tmp_path.iterdir())
