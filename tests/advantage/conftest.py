"""Every test that asks for ``kernel`` runs on the best native kernel, the portable one and the Python reference."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from fugu.native import native


@pytest.fixture(params=["native", "portable", "reference"])
def kernel(request, monkeypatch):
    columns, gae, vtrace = (importlib.import_module(f"fugu.advantage.{name}") for name in ("columns", "gae", "vtrace"))
    if request.param == "reference":
        monkeypatch.setattr(gae, "native", None)
        monkeypatch.setattr(vtrace, "native", None)
    elif native is None:
        pytest.skip("the native core is not built")
    elif request.param == "portable":
        portable = SimpleNamespace(advantage=lambda *arguments: native.advantage(*arguments, portable=True))
        monkeypatch.setattr(columns, "native", portable)
    return request.param
