"""``python -m fugu`` is the ``fugu`` command."""

import sys

from fugu.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
