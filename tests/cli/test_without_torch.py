"""Commands that need torch say in one line that it is missing or broken; the others go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MISSING = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Nothing())
"""
BROKEN = "raise OSError('libtorch_cpu.so: cannot open shared object file')\n"


def fugu(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); " + (MISSING if not list(folder.iterdir()) else "") + "\n"
    code += "from fugu.cli.main import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, str(folder), *words], capture_output=True, text=True, cwd=folder, env={**os.environ}
    )


RUN = str(Path(__file__).parents[1] / "trainer" / "old_run")


@pytest.mark.parametrize(
    ("words", "broken"),
    [
        (("train", "cartpole"), False),
        pytest.param(("train", "cartpole"), True, marks=pytest.mark.slow),
        pytest.param(("eval", RUN), False, marks=pytest.mark.slow),
        (("video", RUN), True),
    ],
)
def test_without_torch_a_command_is_one_line_with_what_to_type(tmp_path: Path, words: tuple[str, ...], broken: bool) -> None:
    if broken:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(BROKEN)
    done = fugu(tmp_path, *words)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    said = "(libtorch_cpu.so: cannot open shared object file)" if broken else "torch is not installed"
    assert said in done.stderr and '"torch>=2.8,<2.14"' in done.stderr and "pip install" in done.stderr


def test_an_error_of_another_module_is_not_blamed_on_torch(tmp_path: Path) -> None:
    done = fugu(tmp_path, "train", "nonsense.py:Env")
    assert "torch" not in done.stderr and "nonsense.py" in done.stderr
