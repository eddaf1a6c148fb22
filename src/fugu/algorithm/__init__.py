"""Algorithms, which learn from batches. One is an object with ``act``, ``prepare`` and ``loss``; see ``contract.py``."""
