"""Advantages, and estimates of them: pure functions of ``[segments, horizon]`` columns."""

from __future__ import annotations

from fugu.ops.advantage import gae, gae_reference, vtrace, vtrace_reference

__all__ = ["gae", "gae_reference", "vtrace", "vtrace_reference"]
