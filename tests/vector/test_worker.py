"""What a worker does before its first step."""

from __future__ import annotations

import subprocess
import sys

PACKAGE = """
import gymnasium

class Still(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}

for number in range(3):
    gymnasium.register(f"Still{number}-v0", entry_point="still:Still")
"""

PROGRAM = """
import fugu
with fugu.vector.make("still:Still1-v0", 2, backend="process", num_workers=2) as vec:
    vec.reset(0)
"""


def test_a_package_that_registers_its_environments_is_imported_in_silence(tmp_path):
    """MiniGrid has two hundred; a worker knows them from the start, and importing it registers them again."""
    (tmp_path / "still.py").write_text(PACKAGE)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
