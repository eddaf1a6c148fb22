"""The ``fugu`` command: ``main`` finds the command, one file per command does it."""
