"""Make the pictures of the pages, in .github/gallery/, from the present code.

python scripts/study/gallery.py               # those whose code has changed
python scripts/study/gallery.py demo noam     # these

`made_of.json` beside the pictures records the code that each was made of, which a test compares with the present code.
Pictures of a model show that of scripts/build_model.py, which is trained first if out/gallery has none, in
some two minutes on two cores. `demo` needs the extra dev, and Chromium.
"""

import ast
import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / ".github" / "gallery"
RECORD = GALLERY / "made_of.json"
OUT = ROOT / "out" / "gallery"
MODEL, RUN = OUT / "phrases-en-de", OUT / "phrases-en-de-run"
SENTENCE = "Today the children must help the teacher."

_PLOTS = "hf_vanilla_transformer/plugins/study/plots.py"
_HEADS = "hf_vanilla_transformer/inference/attention.py"
_FORMULAS = "scripts/study/plot.py"
_RECIPE = "scripts/recipes/phrases.yaml"
_ABLATION = ".github/gallery/ablation.json"


def run(*words: str | Path) -> None:
    """Run a Python program from the root of the clone."""
    subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, check=True)


def plot(*words: str | Path) -> None:
    """Run `vanilla-transformer plot`."""
    run("-m", "hf_vanilla_transformer", "plot", *words)


def take_demo(output: Path) -> None:
    """Write what `demo` shows of a sentence: translation and n best, and beside them the attention of one head."""
    from playwright.sync_api import sync_playwright

    from hf_vanilla_transformer.inference.attention import Explorer
    from hf_vanilla_transformer.plugins.demo.gradio_page import build_page

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    page = build_page(Explorer.load(str(MODEL)))
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1040, "height": 1400}, device_scale_factor=2)
        tab.goto(address)
        tab.get_by_label("Source (en)").fill(SENTENCE)
        tab.get_by_role("button", name="Translate").click()
        heat_map = tab.locator("[data-testid=matplotlib] img, .matplotlib img").first
        heat_map.wait_for()
        # boxes of one line
        tab.add_style_tag(content="textarea { height: 2.7em !important; min-height: 0 !important }")
        boxes = [tab.locator("label", has_text=title) for title in ("Source (en)", "Translation (de)")]
        *texts, drawing = (
            Image.open(io.BytesIO(part.screenshot()))
            for part in (*boxes, tab.locator("table", has_text="Score"), heat_map)
        )
        browser.close()
    page.close()
    side_by_side(texts, [drawing.crop((0, 8, *drawing.size))]).save(output)


def side_by_side(*columns: Sequence[Image.Image], height: int = 600, gap: int = 40) -> Image.Image:
    """Return columns of pictures, each scaled to the same height, on white; columns are two gaps apart."""
    scaled = []
    for pictures in columns:
        column = Image.new("RGB", (max(picture.width for picture in pictures), 0), "white")
        for picture in pictures:
            longer = Image.new("RGB", (column.width, column.height + gap + picture.height), "white")
            longer.paste(column)
            longer.paste(picture, (0, column.height + gap))
            column = longer
        scaled.append(column.resize((column.width * height // column.height, height), Image.Resampling.LANCZOS))

    # wide enough to be shown no higher than a third of the page
    width = sum(column.width + 2 * gap for column in scaled)
    result = Image.new("RGB", (max(width, 11 * height // 4), height), "white")
    left = gap + (result.width - width) // 2
    for column in scaled:
        result.paste(column, (left, 0))
        left += column.width + 2 * gap
    return result


def shrink(picture: Path) -> None:
    """Write a picture again in 64 colours, which take a third of the space."""
    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)


class Picture(NamedTuple):
    """How to make a picture, and the files that draw it and choose what is drawn."""

    make: Callable[[Path], None]
    made_of: list[str]


PICTURES = {
    "demo": Picture(take_demo, ["hf_vanilla_transformer/plugins/demo/gradio_page.py", _HEADS, _RECIPE]),
    "attention": Picture(
        lambda output: plot("attention", MODEL, "--sentence", SENTENCE, "--output", output), [_PLOTS, _HEADS, _RECIPE]
    ),
    "training": Picture(lambda output: plot("training", RUN, "--output", output), [_PLOTS, _RECIPE]),
    "positions": Picture(
        lambda output: run(_FORMULAS, "positions", "--d_model", "128", "--output", output), [_FORMULAS, _PLOTS]
    ),
    "noam": Picture(lambda output: run(_FORMULAS, "noam", "--output", output), [_FORMULAS, _PLOTS]),
    "masks": Picture(lambda output: run(_FORMULAS, "masks", "--output", output), [_FORMULAS, _PLOTS]),
    "table3": Picture(
        lambda output: run(_FORMULAS, "table3", _ABLATION, "--output", output),
        [_FORMULAS, _PLOTS, _ABLATION, "scripts/study/published.py"],
    ),
}


def digest(file: Path) -> str:
    """Return a checksum of what a file does: Python without docstrings, comments and blank lines."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        text = _without_words(text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_words(code: str) -> str:
    """Return the lines of Python code without docstrings, comments on lines of their own, and blank lines."""
    words: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            words.update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    lines = (line for number, line in enumerate(code.splitlines(), start=1) if number not in words)
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def made_of(name: str) -> dict[str, str]:
    """Return the checksums of the files of which a picture would be made now."""
    return {file: digest(ROOT / file) for file in PICTURES[name].made_of}


def outdated() -> dict[str, list[str]]:
    """Return the names of the pictures that are not of the present code, each with the files that have changed."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    changed = {
        name: [file for file, checksum in made_of(name).items() if recorded.get(name, {}).get(file) != checksum]
        for name in PICTURES
    }
    return {name: files for name, files in changed.items() if files or not (GALLERY / f"{name}.png").is_file()}


def main(names: list[str]) -> None:
    if unknown := set(names) - PICTURES.keys():
        sys.exit(f"gallery.py: no picture is called {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}.")
    for name in names or outdated():
        if _RECIPE in PICTURES[name].made_of and not RUN.is_dir():
            run("scripts/build_model.py", OUT)
        print(f"Making {name}.png", flush=True)
        PICTURES[name].make(GALLERY / f"{name}.png")
        shrink(GALLERY / f"{name}.png")
        # After each, since the next may fail
        recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
        recorded[name] = made_of(name)
        RECORD.write_text(json.dumps(dict(sorted(recorded.items())), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
