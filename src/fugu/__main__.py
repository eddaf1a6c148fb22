"""``python -m fugu`` is the ``fugu`` command."""

import os
import sys

try:
    here = os.getcwd()
except OSError:  # it is gone
    here = ""
if not sys.flags.safe_path and sys.path[:1] in ([here], [""]):
    del sys.path[0]  # where python -m puts the current folder: nothing is to be found there that nobody named

from fugu.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
