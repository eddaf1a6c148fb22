"""What is learned from a batch. An algorithm is an object with ``act``, ``prepare`` and ``loss``; see ``contract.py``."""
