"""The installed verl has every seam; without one, a sentence says which."""

import pytest

pytest.importorskip("verl", reason="verl is not in this environment: run `make test-verl`")

import verl
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import agent_loop_tq

from evenhand.errors import UserError
from evenhand.integrations.verl import TRIED, check


def refused(match):
    with pytest.raises(UserError, match=match) as caught:
        check()
    assert str(caught.value).startswith(f"verl {verl.__version__} lacks the seam ")
    assert "\n" not in str(caught.value)


def test_the_installed_version_has_them_all():
    assert verl.__version__ in TRIED
    check()


def test_a_method_that_takes_something_else(monkeypatch):
    monkeypatch.setattr(ToolAgentLoop, "_call_tool", lambda self, call: None)
    refused("_call_tool.*tools behind a desk")


def test_a_name_that_was_not_registered(monkeypatch):
    monkeypatch.delitem(core_algos.ADV_ESTIMATOR_REGISTRY, "evenhand_rloo")
    refused(r"verl\.plugins")


def test_a_module_that_moved(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, agent_loop_tq.__name__, None)
    refused("session_id")
