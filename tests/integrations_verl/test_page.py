"""The page's example runs where verl is."""

import pytest

pytest.importorskip("verl", reason="verl is not in this environment: run `make test-verl`")

from tests import test_docs

PAGE = [block for block in test_docs.blocks() if block.values[0].name == "verl.md"]


@pytest.mark.parametrize(("page", "line", "code"), PAGE)
def test_the_example_runs(page, line, code, tmp_path):
    test_docs.test_block_runs(page, line, code, tmp_path)
