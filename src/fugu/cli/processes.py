"""``fugu train ENV --processes 2``: starts the processes of a training with torchrun's agent, and starts them again if one dies.

Out: the exit code of the training. What its processes print goes where it always went; the first of them reports.
"""

from __future__ import annotations

import logging
import signal
import sys
import uuid
from collections.abc import Sequence

from fugu.errors import signal_name
from fugu.together import LOST, OURS

RESTARTS = 3
"""times that a training is taken up again after one of its processes was killed"""


def launch(argv: Sequence[str], processes: int) -> int:
    """Run ``fugu train`` with ``argv`` in so many processes that learn together."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # who ended, and how, is said here
    name = OURS + uuid.uuid4().hex
    for attempt in range(RESTARTS + 1):
        settings = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=name,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,  # torchrun's own restarts share a store, which breaks gloo
        )
        try:
            elastic_launch(settings, sys.executable)("-m", "fugu", "train", *argv)
            return 0
        except SignalException as end:
            return 128 + end.sigval
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        killed = {rank: code for rank, code in codes.items() if code < 0}
        died = {
            rank: code for rank, code in killed.items() if code != -signal.SIGTERM
        } or killed  # which the agent sends to the rest
        errors = [code for code in codes.values() if code > 0 and code != LOST]
        if not died and errors:  # a rank has said what is wrong, and it would be again
            return max(errors)
        who = ", ".join(f"rank {rank} was killed by {signal_name(-code)}" for rank, code in died.items()) or "a rank was lost"
        if attempt == RESTARTS:
            print(f"fugu: {who}, and {RESTARTS} restarts were not enough", file=sys.stderr)
            return LOST
        print(f"fugu: {who}; going on from the last checkpoint (restart {attempt + 1} of {RESTARTS})", file=sys.stderr)
    raise AssertionError("not reached")
