"""``check_env``: find everything that is wrong with an environment at once, each finding with its fix.

``report`` (findings and facts) <- ``values`` (one value against its space) <- ``player`` (an env of any make, with actions)
<- ``play``, ``repeat``, ``rows``, ``memory``, ``official`` (the checks) <- ``run`` (all of them in order).
"""

from fugu.check.report import CheckFailed, Finding, Report
from fugu.check.run import check_env

__all__ = ["CheckFailed", "Finding", "Report", "check_env"]
