"""The kept form of a study: whole, small, and readable without the study."""

import pyarrow.parquet as pq
import pytest

from evenhand.errors import UserError
from evenhand.report.keep import keep
from tests.study.synthetic import SMALL, write_study

pytest.importorskip("matplotlib")


def test_every_line_of_every_run_is_kept_and_a_second_keep_replaces_it(tmp_path):
    study, out = tmp_path / "study", tmp_path / "docs" / "kept"
    write_study(study, SMALL, lambda run, *cell: float(sum(cell[1:]) % 2))
    for _ in range(2):
        keep(study, out)
    names = {path.name for path in out.iterdir()}
    assert {"protocol.yaml", "frozen.json", "results.json", "report.html", "curves.png"} <= names
    for journal in ("metrics", "evaluations"):
        rows = pq.read_table(out / f"{journal}.parquet").to_pylist()
        files = list(study.glob(f"runs/*/*/{journal}.jsonl"))
        assert len(rows) == sum(len(file.read_text().splitlines()) for file in files) > 0
        assert {(row["arm"], row["seed"]) for row in rows} == {
            (file.parent.parent.name, int(file.parent.name.removeprefix("seed"))) for file in files
        }
    assert not list(out.parent.glob("*.part"))


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    write_study(tmp_path / "study", SMALL, lambda run, *cell: 1.0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="something else"):
        keep(tmp_path / "study", tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
