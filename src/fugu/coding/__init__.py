"""Coding as an environment: an agent writes a program, a sandbox runs it, tests outside the sandbox give the reward."""
