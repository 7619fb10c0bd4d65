"""The page's examples run where TextWorld is."""

import pytest

from tests import test_docs
from tests.environments_textworld import NEEDED

pytest.importorskip("textworld", reason=NEEDED)

PAGE = [block for block in test_docs.blocks() if block.values[0].name == "textworld.md"]


@pytest.mark.parametrize(("page", "line", "code"), PAGE)
def test_the_example_runs(page, line, code, tmp_path):
    test_docs.test_block_runs(page, line, code, tmp_path)
