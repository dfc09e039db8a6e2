import json
import resource
import sys

import pytest
import torch

from hf_vanilla_transformer.plugins.study import plots


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[plots\]"'):
        plots.new_figure(4, 3)


@pytest.mark.parametrize("name", ["map.png", "map.svg"])
def test_a_full_disk_names_the_file_and_leaves_the_earlier_one(tmp_path, name):
    figure = plots.new_figure(4, 3)
    figure.add_subplot().plot([1, 2])
    plots.save(figure, str(tmp_path / name))
    before = (tmp_path / name).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            plots.save(figure, str(tmp_path / name))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(error.value) == f"Cannot write {tmp_path / name}: File too large."
    assert (tmp_path / name).read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [name]


def lines(axes) -> dict[str, list[list[float]]]:
    """Return the x and y values of each line by its label."""
    return {
        line.get_label(): [list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))]
        for line in axes.lines
    }


def test_attention_heads_have_one_panel_each():
    tokens = {"source": ["a", "b", "</s>"], "target": ["<s>", "x"]}
    sizes = {"encoder": (3, 3), "decoder": (2, 2), "cross": (2, 3)}
    weights = {kind: torch.rand(2, 4, *size) for kind, size in sizes.items()}
    panels = plots.attention_heads(weights, tokens, layer=-1).axes[:12]
    for i, axes in enumerate(panels):
        kind, head = list(sizes)[i // 4], i % 4
        assert axes.get_title() == f"{kind}, head {head + 1}"
        assert axes.images[0].get_array().tolist() == weights[kind][1, head].tolist()
    with pytest.raises(ValueError, match="no layer 2: the model has 2 layers, from 0 to 1"):
        plots.attention_heads(weights, tokens, layer=2)


LOG = [
    {"step": 5, "loss": 3.0},
    {"step": 10, "loss": 2.0},
    {"step": 10, "eval_loss": 1.0, "eval_perplexity": 2.7, "eval_bleu": 9.0},
]


def test_training_curves_show_the_logs_of_finished_and_interrupted_runs(tmp_path):
    finished, interrupted = {"global_step": 10, "log_history": LOG}, {"global_step": 5, "log_history": LOG[:1]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(finished))
    (tmp_path / "interrupted" / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "interrupted" / "checkpoint-5" / "model.safetensors").touch()
    (tmp_path / "interrupted" / "checkpoint-5" / "trainer_state.json").write_text(json.dumps(interrupted))
    runs = {"finished": plots.read_log(str(tmp_path)), "interrupted": plots.read_log(str(tmp_path / "interrupted"))}
    loss, perplexity, bleu = plots.training_curves(runs).axes
    assert lines(loss) == {"finished": [[5, 10], [3, 2]], "interrupted": [[5], [3]]}
    assert lines(perplexity) == {"finished, validation": [[10], [2.7]]}
    assert lines(bleu) == {"finished": [[10], [9]]}
    with pytest.raises(FileNotFoundError, match="is not the folder of a training run"):
        plots.read_log(str(tmp_path / "nowhere"))
    # a run that had finished after 4 updates and was resumed with more
    (tmp_path / "interrupted" / "trainer_state.json").write_text(json.dumps({"global_step": 4, "log_history": []}))
    assert plots.read_log(str(tmp_path / "interrupted")) == LOG[:1]


@pytest.mark.parametrize("damaged", [{"step": "5"}, {"step": 5, "eval_news_perplexity": "2.7"}, {"loss": 3.0}, None])
def test_a_log_with_anything_but_numbers_is_damaged(tmp_path, damaged):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 5, "log_history": [*LOG, damaged]}))
    with pytest.raises(ValueError, match=r"trainer_state.json is damaged: it is not the state of a training run"):
        plots.read_log(str(tmp_path))


def plotted(log: list[dict[str, float]], name: str = "run"):
    """Return the panel of perplexity of one run."""
    (axes,) = (axes for axes in plots.training_curves({name: log}).axes if "perplexity" in axes.get_title())
    return axes


def test_training_and_validation_perplexity_share_one_scale():
    log = [{"step": 5, "loss": 3.0, "perplexity": 12.0}, {"step": 10, "loss": 2.0, "perplexity": 5.0}, LOG[2]]
    axes = plotted(log)
    assert lines(axes) == {"training": [[5, 10], [12, 5]], "validation": [[10], [2.7]]}
    training, validation = axes.lines
    # Told apart without colours, too
    assert training.get_linewidth() < validation.get_linewidth()
    assert training.get_marker() != validation.get_marker()


def test_each_of_several_validation_texts_has_its_curves():
    log = [{"step": 10, f"eval_{name}_perplexity": value} for name, value in (("news", 9.0), ("talks", 7.0))]
    log = [{**entry, f"eval_{name}_bleu": 1.0} for entry, name in zip(log, ("news", "talks"), strict=True)]
    perplexity, bleu = plots.training_curves({"run": log}).axes
    assert lines(perplexity) == {"news": [[10], [9]], "talks": [[10], [7]]}
    assert [*lines(bleu)] == ["news", "talks"]
    perplexity, bleu = plots.training_curves({"run": log, "other": log[:1]}).axes
    assert [*lines(bleu)] == ["run, news", "run, talks", "other, news"]


def test_a_legend_of_one_run_has_no_name_that_tells_nothing_apart():
    log = [{"step": 5, "loss": 3.0, "perplexity": 12.0}, *LOG[1:]]
    loss, perplexity, bleu = plots.training_curves({"run": log}).axes
    assert loss.get_legend() is bleu.get_legend() is None
    assert [text.get_text() for text in perplexity.get_legend().get_texts()] == ["training", "validation"]


def test_the_plot_names_overfitting_and_the_best_update():
    values = ((100, 20.0), (1200, 10.0), (1300, 15.0))
    log = [{"step": step, "eval_perplexity": value} for step, value in values]
    legend = [text.get_text() for text in plotted(log).get_legend().get_texts()]
    assert legend == ["validation", "overfits after update 1,200"]
    assert lines(plotted(log))["overfits after update 1,200"][0] == [1200, 1200]
    assert [*lines(plotted(log[:2]))] == ["validation"]
    several = plots.training_curves({"one": log, "two": log[:2]}).axes[0]
    assert "one overfits after update 1,200" in lines(several)
