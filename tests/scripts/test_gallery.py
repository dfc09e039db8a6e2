"""The pictures of the pages: which code they are of, and those that scripts/study/plot.py draws."""

import math
import re
from types import ModuleType

import pytest
from corpora import ROOT
from PIL import Image
from script_runs import import_script

GALLERY = ROOT / ".github" / "gallery"
PAGES = [page for folder in (".github", "model_cards", "scripts") for page in (ROOT / folder).rglob("*.md")]


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    """The module scripts/study/gallery.py."""
    return import_script("study/gallery.py")


def test_every_picture_is_of_the_present_code(gallery):
    assert gallery.outdated() == {}, "run python scripts/study/gallery.py"


def test_every_picture_of_a_page_is_made_by_one_command_and_every_one_made_is_shown(gallery):
    text = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *PAGES])
    shown = set(re.findall(r"\]\([./]*\.github/gallery/(\w+)\.png\)", text))
    assert shown == gallery.PICTURES.keys() == {file.stem for file in GALLERY.glob("*.png")}
    assert all(file.stat().st_size < 150_000 for file in GALLERY.iterdir())


def test_a_picture_is_outdated_when_its_code_or_its_settings_change_but_not_when_words_do(gallery, tmp_path):
    code = tmp_path / "code.py"
    code.write_text('"""Draw."""\n\n# as in the paper\ndef draw(n):\n    """Draw n lines."""\n    return n\n')
    before = gallery.digest(code)
    code.write_text('"""Draw\nlines."""\n# differently\ndef draw(n):\n    """Return n."""\n\n    return n\n')
    assert gallery.digest(code) == before
    code.write_text('"""Draw."""\ndef draw(n):\n    """Draw n lines."""\n    return n + 1\n')
    assert gallery.digest(code) != before
    recipe = tmp_path / "recipe.yaml"
    digests = set()
    for updates in (3, 4):
        recipe.write_text(f"max_steps: {updates}\n")
        digests.add(gallery.digest(recipe))
    assert len(digests) == 2


def test_outdated_pictures_are_named_with_what_has_changed(gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "RECORD", tmp_path / "made_of.json")
    assert gallery.outdated() == {name: picture.made_of for name, picture in gallery.PICTURES.items()}
    monkeypatch.setattr(gallery, "GALLERY", tmp_path)
    picture = gallery.Picture(Image.new("RGB", (9, 9)).save, ["scripts/study/plot.py"])
    monkeypatch.setattr(gallery, "PICTURES", {"noam": picture})
    gallery.main([])
    assert gallery.outdated() == {}
    # deleted by hand
    (tmp_path / "noam.png").unlink()
    assert gallery.outdated() == {"noam": []}
    with pytest.raises(SystemExit, match="no picture is called moon; there are noam"):
        gallery.main(["moon"])


def test_the_picture_of_the_readme_fits_the_first_screen():
    """GitHub shows pages up to 1,000 pixels wide, 936 of them for text and pictures."""
    with Image.open(GALLERY / "demo.png") as picture:
        width, height = picture.size
    assert height * min(1, 936 / width) <= 350


@pytest.fixture(scope="module")
def plot() -> ModuleType:
    """The module scripts/study/plot.py."""
    return import_script("study/plot.py")


def lines(axes) -> dict[str, list[list[float]]]:
    """Return the x and y values of each line by its label."""
    return {
        line.get_label(): [list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))]
        for line in axes.lines
    }


def test_positions_show_sinusoids_and_dot_products_that_depend_only_on_the_distance(plot):
    left, right = plot.positions(16, 40).axes[:2]
    table = left.images[0].get_array()
    assert table.shape == (40, 16)
    for position, i in ((0, 0), (7, 3), (39, 7)):
        angle = position / 10000 ** (2 * i / 16)
        assert table[position, 2 * i] == pytest.approx(math.sin(angle))
        assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle))
    curves = [dict(zip(*curve, strict=True)) for curve in lines(right).values()]
    assert len(curves) == 2
    for distance in range(-10, 20):
        expected = sum(math.cos(distance / 10000 ** (2 * i / 16)) for i in range(8))
        assert all(curve[distance] == pytest.approx(expected) for curve in curves)


def test_noam_curves_peak_at_the_warm_up_and_mark_the_peak_of_the_paper(plot):
    (axes,) = plot.noam_curves([(512, 4000), (256, 100)], 5000).axes
    curves = lines(axes)
    for name, (width, warmup) in zip(list(curves)[:2], [(512, 4000), (256, 100)], strict=True):
        updates, rates = curves[name]
        assert updates[rates.index(max(rates))] == warmup
        assert max(rates) == pytest.approx((width * warmup) ** -0.5)
    assert curves["peak of the paper's base model, 6.99e-04"] == [[4000.0], [pytest.approx(6.99e-4, rel=1e-3)]]


def test_plotted_masks_are_those_of_the_model(plot):
    padding, causal, both = (axes.images[0].get_array().tolist() for axes in plot.masks([4, 2]).axes)
    assert padding == [[True] * 4, [True, True, False, False]]
    assert causal == [[key <= query for key in range(4)] for query in range(4)]
    assert both == [[key <= query and key < 2 for key in range(4)] for query in range(4)]


def test_rows_of_table_3_are_plotted_as_differences_to_base(plot):
    results = {"base": {"bleu": 30.0, "perplexity": 8.0}, "A1": {"bleu": 28.5, "perplexity": 8.5}}
    bleu, perplexity = plot.ablation(results).axes
    assert [bar.get_width() for bar in bleu.patches] == pytest.approx([-1.5, 24.9 - 25.8])
    assert [bar.get_width() for bar in perplexity.patches] == pytest.approx([0.5, 5.29 - 4.92])
    with pytest.raises(ValueError, match="compared with base"):
        plot.ablation({"A1": results["A1"]})
    with pytest.raises(ValueError, match="BLEU or perplexity is missing for A1"):
        plot.ablation({**results, "A1": {"perplexity": 8.5}})


def test_a_search_is_plotted_from_its_results(plot):
    trials = [
        {"number": 0, "state": "complete", "value": 3.0},
        {"number": 1, "state": "pruned", "value": 9.0},
        {"number": 2, "state": "complete", "value": 4.0},
        {"number": 3, "state": "complete", "value": 2.0},
    ]
    result = {"measure": "loss", "direction": "minimize", "trials": trials, "importances": {"a": 0.2, "b": 0.8}}
    left, right = plot.search(result).axes
    assert lines(left)["best so far"] == [[0, 2, 3], [3, 3, 2]]
    assert left.collections[1].get_offsets().tolist() == [[1, 9]]
    assert [bar.get_width() for bar in right.patches] == [0.2, 0.8]


@pytest.mark.parametrize(
    "words",
    [
        ["positions", "--d_model", "32"],
        ["noam", "--curves", "512:4000", "--steps", "5000"],
        ["masks", "--lengths", "3", "2"],
        ["table3", str(ROOT / ".github" / "gallery" / "ablation.json")],
    ],
    ids=lambda words: words[0],
)
def test_the_same_command_writes_the_same_bytes(words, plot, tmp_path):
    for name in ("one.png", "two.png", "one.svg", "two.svg"):
        plot.main([*words, "--output", str(tmp_path / name)])
    for kind in ("png", "svg"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    with Image.open(tmp_path / "one.png") as picture:
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24)) > 10


def test_a_wrong_curve_is_reported_with_the_right_form(plot, capsys):
    for words in (["noam", "--curves", "512"], ["masks", "--lengths", "0"], []):
        with pytest.raises(SystemExit) as stop:
            plot.main([*words, "--output", "x.png"])
        assert stop.value.code == 2
    with pytest.raises(SystemExit):
        plot.main(["noam", "--curves", "512", "--output", "x.png"])
    assert "must have the form 512:4000, got '512'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "results",
    ["[]", '{"base": 3, "A1": {}}', '{"base": {"bleu": "x", "perplexity": 1}, "A1": {"bleu": 1, "perplexity": 2}}'],
)
def test_invalid_results_of_table_3_are_reported_in_one_line(results, plot, tmp_path):
    (tmp_path / "ablation.json").write_text(results)
    with pytest.raises(SystemExit, match=r"^plot\.py: [^\n]+$"):
        plot.main(["table3", str(tmp_path / "ablation.json"), "--output", str(tmp_path / "t.png")])
