"""The curves as a picture."""

import pytest

from evenhand.errors import UserError
from evenhand.report.charts import names
from evenhand.study.protocol import Comparison
from tests.study.synthetic import SMALL, write_study

pytest.importorskip("matplotlib")


def test_a_png_with_ink(tmp_path):
    from matplotlib.image import imread

    from evenhand.report.figures import curves_png

    write_study(tmp_path / "study", SMALL, lambda run, *cell: float(sum(cell[1:]) % 2))
    curves_png(tmp_path / "study", tmp_path / "docs" / "curves.png", dpi=60)
    pixels = imread(tmp_path / "docs" / "curves.png")
    assert pixels.shape[0] > 100 and pixels.shape[1] > 200
    assert pixels[..., :3].min() < 0.2 < 0.9 < pixels[..., :3].max()


def test_nothing_to_draw(tmp_path):
    from evenhand.report.figures import curves_png

    write_study(tmp_path / "study", SMALL, lambda *cell: 0.0, only=lambda run: False)
    with pytest.raises(UserError, match="no learning curve"):
        curves_png(tmp_path / "study", tmp_path / "curves.png")


@pytest.mark.parametrize(
    ("treatment", "control", "short"),
    [
        ("paired", "independent", ("paired", "independent")),
        ("faults-std-paired", "faults-std-independent", ("paired", "independent")),
        ("paired-centred", "independent-centred", ("paired", "independent")),
        ("a-b", "a-b-c", ("b", "b-c")),
    ],
)
def test_short_names(treatment, control, short):
    assert names(Comparison(name="x", treatment=treatment, control=control)) == short
