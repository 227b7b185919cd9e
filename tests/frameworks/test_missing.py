"""An adapter without its framework, or with an old one, says what to install."""

from __future__ import annotations

import importlib
import sys
import types

import pytest

ADAPTERS = {
    "tensorflow": "tensorflow>=2.16",
    "jax": "jax>=0.4.35",
    "grain": "grain>=0.2.10",
    "huggingface": "datasets>=4.0",
}


@pytest.fixture(params=ADAPTERS)
def name(request, monkeypatch):
    """The name of an adapter, whose modules are imported anew."""
    for module in list(sys.modules):
        if module == f"forebay.{request.param}" or module.startswith(f"forebay.{request.param}."):
            monkeypatch.delitem(sys.modules, module)
    return request.param


def test_an_adapter_without_its_framework_says_what_to_install(name, monkeypatch):
    framework = ADAPTERS[name].partition(">=")[0]
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ImportError, match=rf"forebay\.{name}: {framework} cannot be imported") as found:
        importlib.import_module(f"forebay.{name}")
    assert f"pip install '{ADAPTERS[name]}'" in str(found.value)


def test_an_adapter_with_an_old_framework_says_what_to_install(name, monkeypatch):
    framework, _, expected = ADAPTERS[name].partition(">=")
    old = types.ModuleType(framework)
    old.__version__ = "0.1.2"
    monkeypatch.setitem(sys.modules, framework, old)
    numbers = r"\.".join(expected.split(".")[:3])
    with pytest.raises(ImportError, match=rf"expected {framework} {numbers} or later, found 0\.1\.2"):
        importlib.import_module(f"forebay.{name}")
