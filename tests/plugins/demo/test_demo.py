"""The demo page, in Chromium at the sizes of a desktop and of a phone, and its functions without a browser."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.inference.attention import MAX_CHARACTERS, MAX_TOKENS, Explorer
from hf_vanilla_transformer.plugins.demo.gradio_page import attention_map, heat_map

SENTENCE = "a man is riding a bicycle ."
WEIGHTS = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])


@pytest.fixture(scope="module")
def explorer(trained_on_multi30k):
    return Explorer.load(str(trained_on_multi30k[2]))


@pytest.mark.slow
def test_candidates_are_sorted_by_score_and_the_first_is_that_of_generate(explorer, trained_on_multi30k):
    model, tokenizer, *_ = trained_on_multi30k
    for beams, alpha in ((4, 0.6), (3, 1.5), (1, 0.6)):
        candidates = explorer.translate(SENTENCE, beams, alpha)
        assert len(candidates) == beams
        for _, text, ids in candidates:
            assert explorer.translator.tokenizer.decode(ids, skip_special_tokens=True) == text
            assert ids[1:].count(2) <= 1  # no padding after </s>
        scores = [score for score, _, _ in candidates]
        assert scores == sorted(scores, reverse=True)
        settings = {"num_beams": beams, **({"length_penalty": alpha} if beams > 1 else {})}
        expected = model.generate(**tokenizer(SENTENCE, return_tensors="pt"), **settings)
        assert candidates[0][1] == tokenizer.decode(expected[0], skip_special_tokens=True)


@pytest.mark.slow
def test_heat_map_shows_attention_weights_that_sum_to_one(explorer):
    target = explorer.translate(SENTENCE, 2, 0.6)[0][2]
    attention = explorer.attention(SENTENCE, target)
    config, source = explorer.model.config, len(explorer.translator.tokenizer(SENTENCE).input_ids)
    shapes = {kind: tuple(weights.shape) for kind, weights in attention["weights"].items()}
    assert shapes["encoder"] == (config.num_encoder_layers, config.num_heads, source, source)
    assert shapes["cross"] == (config.num_decoder_layers, config.num_heads, len(target) - 1, source)
    assert shapes["decoder"][2:] == (len(target) - 1, len(target) - 1)
    for weights in attention["weights"].values():
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert attention["weights"]["decoder"].triu(1).abs().max() == 0
    assert attention["tokens"]["source"][-1] == "</s>"
    axes = heat_map(attention, "cross", 1, 2).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == attention["tokens"]["source"]
    # a row is named after what is predicted there, a column after what has been read
    assert [label.get_text() for label in axes.get_yticklabels()] == attention["tokens"]["predicted"]
    assert attention["tokens"]["predicted"] == [*attention["tokens"]["target"][1:], "</s>"]
    assert (axes.images[0].get_array() == attention["weights"]["cross"][0, 1].numpy()).all()
    axes = heat_map(attention, "decoder", 1, 2).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == attention["tokens"]["target"]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("predicted", "target")


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), [(" ", "Type a sentence"), ("dog " * 200, f"the limit is {MAX_TOKENS}")])
def test_blank_and_long_texts_are_clear_errors(explorer, text, message):
    with pytest.raises(ValueError, match=message):
        explorer.translate(text, 4, 0.6)


@pytest.fixture(scope="module")
def address(trained_on_multi30k, tmp_path_factory):
    """The address of the page, served by `vanilla-transformer demo` in its own process."""
    log = tmp_path_factory.mktemp("demo") / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hf_vanilla_transformer", "demo", str(trained_on_multi30k[2])]
    command += ["--port", str(port)]
    with open(log, "w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            for _ in range(240):
                if process.poll() is not None:
                    raise RuntimeError(log.read_text())
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=30).read()
                    break
                except OSError:
                    time.sleep(0.5)
            else:
                pytest.fail(f"the page does not answer\n{log.read_text()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.slow
def test_heads_are_switched_off_in_translations_and_in_the_attention_behind_them(explorer, trained_on_multi30k):
    model, tokenizer, *_ = trained_on_multi30k
    first_layer = [name for name in explorer.heads if name.startswith("cross, layer 1,")]
    without = [*first_layer, "encoder, layer 2, head 1"]
    masks = {name: torch.ones(2, model.config.num_heads) for name in ("cross_attn_head_mask", "head_mask")}
    masks["cross_attn_head_mask"][0] = 0
    masks["head_mask"][1, 0] = 0
    expected = model.generate(**tokenizer(SENTENCE, return_tensors="pt"), num_beams=2, **masks)
    candidates = explorer.translate(SENTENCE, 2, 0.6, without=without)
    assert candidates[0].text == tokenizer.decode(expected[0], skip_special_tokens=True)
    assert candidates != explorer.translate(SENTENCE, 2, 0.6)

    ids = candidates[0].ids
    weights = explorer.attention(SENTENCE, ids, without=without)["weights"]
    whole = explorer.attention(SENTENCE, ids)["weights"]
    # what is removed changes only the layers above it
    assert torch.equal(weights["decoder"][0], whole["decoder"][0])
    assert not torch.equal(weights["decoder"][1], whole["decoder"][1])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_page_translates_and_shows_attention(address, browser, explorer, width, height, tmp_path):
    from playwright.sync_api import expect

    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(address)
    page.get_by_text("Examples", exact=True).wait_for()
    example = next(phrase.en for phrase in splits()["test"] if len(phrase.en) < 60)
    page.get_by_text(example).first.click()
    expect(page.get_by_label("Source (en)")).to_have_value(example)
    page.get_by_label("Source (en)").fill(SENTENCE)
    page.get_by_role("button", name="Translate").click()
    expected = explorer.translate(SENTENCE, 4, 0.6)
    expect(page.get_by_label("Translation (de)")).to_have_value(expected[0][1])
    for score, text, _ in expected:
        expect(page.locator("table")).to_contain_text(f"{score:.3f}")
        expect(page.locator("table")).to_contain_text(text)
    drawing = page.locator("[data-testid=matplotlib] img, .matplotlib img").first
    expect(drawing).to_be_visible()
    before = drawing.get_attribute("src")
    page.get_by_label("encoder").check()
    expect(drawing).not_to_have_attribute("src", before)

    page.get_by_label("Heads switched off").click()
    page.get_by_role("option", name="cross, layer 1, head 1", exact=True).click()
    page.get_by_role("button", name="Translate").click()
    best = explorer.translate(SENTENCE, 4, 0.6, without=["cross, layer 1, head 1"])[0]
    expect(page.locator("table")).to_contain_text(f"{best.score:.3f}")
    expect(page.get_by_label("Translation (de)")).to_have_value(best.text)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    page.close()


@pytest.mark.slow
def test_page_shows_errors_without_a_traceback(address, browser):
    page = browser.new_page()
    page.goto(address)
    page.get_by_role("button", name="Translate").click()
    page.get_by_text("Type a sentence first.").wait_for()
    assert "Traceback" not in page.content()
    page.close()


@pytest.mark.slow
def test_page_listens_only_on_the_local_host_by_default(address):
    listening = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/net/tcp').read())"], capture_output=True, text=True
    ).stdout
    port = f":{int(address.rpartition(':')[2]):04X} "
    lines = [line.split() for line in listening.splitlines() if port in line and line.split()[3] == "0A"]
    assert [line[1].split(":")[0] for line in lines] == ["0100007F"]


def test_character_limit_is_enforced_without_a_browser(small_model, tmp_path):
    small_model(vocab_size=260).save_pretrained(tmp_path)
    train_tokenizer([""], 260).save_pretrained(tmp_path)
    explorer = Explorer.load(str(tmp_path))
    explorer.translator.tokenizer = None  # the text must not even be tokenised
    with pytest.raises(ValueError, match=f"2,001 characters, but the limit is {MAX_CHARACTERS:,}"):
        explorer.translate("a" * 2001, 1, 0.6)


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.1", "localhost"])
def test_demo_accepts_ipv4_and_ipv6_addresses(host, small_model, tmp_path, monkeypatch):
    if ":" in host and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    launched = []
    monkeypatch.setattr(Explorer, "load", lambda name, dtype: None)
    monkeypatch.setattr(
        "hf_vanilla_transformer.plugins.demo.gradio_page.build_page", lambda explorer: SimpleNamespace(launch=launch)
    )

    def launch(server_name, server_port):
        launched.append(server_name)

    assert main(["demo", "nowhere", "--host", host]) == 0
    assert launched == ["[::1]" if ":" in host else host]  # the form that Gradio expects


def test_attention_maps_have_one_labelled_row_per_query_and_one_column_per_key():
    figure = attention_map(WEIGHTS, ["ein", "hund"], ["a", "dog", "</s>"], "layer 1, head 2", ("target", "source"))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ein", "hund"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "dog", "</s>"]
    assert (axes.get_ylabel(), axes.get_xlabel(), axes.get_title()) == ("target", "source", "layer 1, head 2")
    (image,) = axes.images
    assert image.get_array().tolist() == WEIGHTS.tolist()
    assert image.get_clim() == (0, 1)  # the same colour scale in every plot


def test_longer_texts_have_larger_attention_maps():
    small, large = (attention_map(torch.eye(n), ["x"] * n, ["y"] * n, "", ("", "")).get_size_inches() for n in (5, 40))
    assert (large > small).all()
