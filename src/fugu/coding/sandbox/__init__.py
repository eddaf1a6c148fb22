"""Programs nobody has read, run so that they cannot harm what is around them, hundreds per second and core.

``contract`` (what goes in and comes out) -> ``values`` (arguments and results as JSON) -> ``config`` -> ``sandbox`` (what the user
holds) -> ``fork`` (the default backend) -> ``worker`` (a zygote as it sees it), ``job`` and ``execution`` (a program under way),
``ending`` (its status). What is said between processes: ``wire``. In the other process: ``zygote`` (moves into its namespaces),
``doors`` (prepares what each program is locked with) -> ``loop`` (forks) -> ``child`` (locks every door) -> ``program`` (runs what is
behind them), the last three in C where it was compiled; on ``kernel``, ``root``, ``seccomp`` and ``landlock``. ``probe`` and ``trial``
find out what the machine allows.
"""

from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Backend, Call, Isolation, Limits, Outcome, Program, Status
from fugu.coding.sandbox.sandbox import Sandbox, open_backend

__all__ = ["Backend", "Call", "Isolation", "Limits", "Outcome", "Program", "Sandbox", "SandboxConfig", "Status", "open_backend"]
