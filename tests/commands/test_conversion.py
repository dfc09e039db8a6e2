"""`vanilla-transformer convert`, from and to MarianMT."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
import torch
from guide_pages import GUIDE
from opus_models import opus_model, write_opus_tokenizer
from sample_text import PAIRS
from small import write_moses
from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    FSMTConfig,
    FSMTForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianForCausalLM,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

from hf_vanilla_transformer import Translator, convert, train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.tokenizer import add_tags
from hf_vanilla_transformer.flags import Decides
from hf_vanilla_transformer.model import generation_vanilla_transformer as generation
from hf_vanilla_transformer.model import text_rules_vanilla_transformer as text_rules
from hf_vanilla_transformer.sharing.card import CardDetails, model_card
from hf_vanilla_transformer.training.arguments import ModelArguments, meaning

SOURCES = [source for source, _ in PAIRS if source][:60]
TARGETS = [target for _, target in PAIRS]
BASE = {
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
}
# 1,000 take several minutes for each search
BASE_SENTENCES = int(os.environ.get("BASE_SENTENCES", "20"))
TAGS = [">>cmn_Hans<<", ">>cmn<<", ">>eng<<", ">>fra<<", ">>zho<<"]


def save_opus(folder: Path, tags=(), **languages) -> MarianMTModel:
    tokenizer = write_opus_tokenizer(folder, SOURCES, TARGETS, tags=tags, **languages)
    model = opus_model(tokenizer)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def opus(tmp_path_factory) -> Path:
    """A model like OPUS-MT's from English to German."""
    folder = tmp_path_factory.mktemp("opus") / "opus-mt-en-de"
    save_opus(folder)
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A model\n")
    return folder


@pytest.mark.slow
def test_a_converted_model_translates_as_marian_does(opus, tmp_path, monkeypatch, capsys):
    assert main(["convert", str(opus), str(tmp_path / "out")]) == 0
    assert "en-de" in capsys.readouterr().err
    marian = MarianMTModel.from_pretrained(opus)
    tokenizer = AutoTokenizer.from_pretrained(opus)
    translator = Translator.load(str(tmp_path / "out"))
    searches = []
    for name in ("greedy_search", "beam_search"):
        search = getattr(generation, name)
        monkeypatch.setattr(generation, name, lambda *args, s=search, n=name: (searches.append(n), s(*args))[1])

    batch = tokenizer(SOURCES, return_tensors="pt", padding=True)
    assert translator.encode(SOURCES) == tokenizer(SOURCES)["input_ids"]
    for num_beams in (1, 4, 6):
        settings = {"num_beams": num_beams, "max_length": 40}
        expected = marian.generate(**batch, **settings)
        assert torch.equal(translator.model.generate(**batch, **settings), expected)
        texts = [translation.text for translation in translator.translate(SOURCES, **settings)]
        assert texts == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert set(searches) == {"greedy_search", "beam_search"}
    # the settings saved with the model: beam 4, and at most 512 tokens
    expected = marian.generate(**tokenizer(SOURCES[:1], return_tensors="pt"))
    assert translator.translate_ids(translator.encode(SOURCES[:1]))[0].hypotheses == expected.tolist()
    assert expected.shape[1] > 100


@pytest.fixture(scope="module")
def opus_base(tmp_path_factory) -> tuple[Path, Path]:
    """The folders of a random model of base size with OPUS-MT's settings, and of its conversion."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = write_opus_tokenizer(folder / "opus-mt-en-de", SOURCES, TARGETS, size=1000)
    model = opus_model(tokenizer, **BASE)
    # such that, in spite of its depth, most outputs differ and do not repeat one token
    for name, parameter in model.named_parameters():
        if "layers" in name:
            parameter.data *= 0.25 if parameter.dim() > 1 else 1.0 if "layer_norm.weight" in name else 0.1
    last = model.model.decoder.layers[-1]
    last.fc2.weight.data *= 100
    last.encoder_attn.out_proj.weight.data *= 3
    model.model.shared.weight.data *= 0.15
    model.final_logits_bias *= 0.03
    model.save_pretrained(folder / "opus-mt-en-de")
    assert main(["convert", str(folder / "opus-mt-en-de"), str(folder / "converted")]) == 0
    return folder / "opus-mt-en-de", folder / "converted"


@torch.inference_mode()
def mean_log_probability(marian: MarianMTModel, source: dict, output: torch.Tensor) -> float:
    """Return the score by which MarianMT's beam search ranks an output of at most 40 tokens, in float64."""
    logits = marian.double()(**source, decoder_input_ids=output[None, :-1]).logits[0]
    logits[:, marian.config.pad_token_id] = -torch.inf
    chosen = logits.log_softmax(-1).gather(1, output[1:, None])[:, 0]
    marian.float()
    chosen[38:] = 0.0  # the last token of 40 is forced
    length = output[1:].tolist().index(marian.config.eos_token_id) + 1
    return chosen[:length].sum().item() / length


@pytest.mark.slow
@pytest.mark.timeout(7200)  # for 1,000 sentences
@pytest.mark.parametrize("num_beams", [1, 4, 6])
def test_a_converted_model_of_base_size_translates_to_the_token_as_marian_does(opus_base, num_beams):
    marian = MarianMTModel.from_pretrained(opus_base[0])
    tokenizer = AutoTokenizer.from_pretrained(opus_base[0])
    converted = Translator.load(str(opus_base[1])).model
    sentences = [phrase.en for phrase in splits()["train"][:BASE_SENTENCES]]
    for start in range(0, len(sentences), 50):
        batch = tokenizer(sentences[start : start + 50], return_tensors="pt", padding=True)
        expected = marian.generate(**batch, num_beams=num_beams, max_length=40)
        found = converted.generate(**batch, num_beams=num_beams, max_length=40)
        # One output more or less decides how far all are padded
        width = max(found.shape[1], expected.shape[1])
        found, expected = (
            torch.nn.functional.pad(each, (0, width - each.shape[1]), value=marian.config.pad_token_id)
            for each in (found, expected)
        )
        different = (found != expected).any(1).nonzero().flatten().tolist()
        assert len(different) <= 0.05 * len(found)
        for row in different:  # hypotheses whose scores float32 cannot tell apart
            source = {name: values[row : row + 1] for name, values in batch.items()}
            scores = [mean_log_probability(marian, source, output[row]) for output in (found, expected)]
            assert scores[0] == pytest.approx(scores[1], rel=2e-6)
        outputs = expected.tolist()
        assert len(set(map(tuple, outputs))) > 0.8 * len(outputs)
        assert sum(len(set(output)) for output in outputs) > 8 * len(outputs)


# A value for each flag that does not apply to a converted model, if it is not a number
REFUSED = {"position_embedding": "learned", "tokenizer_model": "unigram", "normalization": "nfkc"}
REFUSED |= {"bpe_dropout": "0.1", "tokenizer_name": "OTHER"}


def test_the_guide_lists_the_flags_that_do_not_apply_and_train_refuses_each(opus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    page = (GUIDE / "opus_mt.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1:3] for row in page.splitlines() if row.startswith("| `--")]
    listed = [flag for row in rows for flag in re.findall(r"`--(\w+)`", row[0])]
    sizes = [flag.name for flag in fields(ModelArguments) if meaning(flag.name).decides is Decides.SIZES]
    assert sorted(listed) == sorted({*sizes, *REFUSED})

    convert.from_pretrained(opus, tmp_path / "converted")
    train_tokenizer(SOURCES, 300).save_pretrained(tmp_path / "other")
    write_moses(tmp_path / "text", en=SOURCES[:9], de=TARGETS[:9])
    words = ["--model_name_or_path", str(tmp_path / "converted"), "--train_file", str(tmp_path / "text"), "--use_cpu"]
    words += ["--preset", "tiny", "--output_dir", str(tmp_path / "out")]
    for flags, reason in rows:
        for flag in re.findall(r"`--(\w+)`", flags):
            value = REFUSED.get(flag, "7").replace("OTHER", str(tmp_path / "other"))
            assert main(["train", *words, f"--{flag}", value]) == 1, flag
            error = capsys.readouterr().err.splitlines()[-1]
            assert re.search(r"`(.+)`", reason)[1] in error, error


def test_the_card_of_a_converted_model_names_its_source_and_licence(opus, tmp_path):
    convert.from_pretrained(opus, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "en to de and was converted from opus-mt-en-de (cc-by-4.0)" in " ".join(card.split())
    assert "license: cc-by-4.0" in card
    assert "limited to 512 tokens" in card
    assert str(opus.parent) not in card


@pytest.mark.parametrize(
    ("name", "tokenizer", "flags", "expected"),
    [
        ("opus-mt-en-de", {}, [], "en-de"),
        ("opus-mt-tc-big-eng-deu", {}, [], "en-de"),
        ("opus-mt-en-tw", {}, [], "en-tw"),
        ("opus-mt-en-de", {"source_lang": "fin", "target_lang": "est"}, [], "fi-et"),
        ("my-model", {}, ["--source_lang", "fi", "--target_lang", "et"], "fi-et"),
        ("my-model", {}, [], "unknown languages"),
        ("opus-mt-en-de-finetuned-news", {}, [], "unknown languages"),
    ],
)
def test_languages_come_from_the_flags_the_tokenizer_or_the_name(tmp_path, name, tokenizer, flags, expected):
    save_opus(tmp_path / name, **tokenizer)
    assert main(["convert", str(tmp_path / name), str(tmp_path / "out"), *flags]) == 0
    assert str(Translator.load(str(tmp_path / "out")).directions) == expected


@pytest.mark.parametrize(
    ("readme", "expected"),
    [
        ("license: [mit, apache-2.0]", "(mit, apache-2.0)"),
        ("license: [mit", "converted from opus-mt-en-de and"),
        ("- mit", "converted from opus-mt-en-de and"),
        (None, "converted from opus-mt-en-de and"),
    ],
)
def test_an_unknown_licence_is_said_to_be_unknown(tmp_path, readme, expected, capsys):
    save_opus(tmp_path / "opus-mt-en-de")
    if readme:
        (tmp_path / "opus-mt-en-de" / "README.md").write_text(f"---\n{readme}\n---\n")
    assert main(["convert", str(tmp_path / "opus-mt-en-de"), str(tmp_path / "out")]) == 0
    assert ("The licence of opus-mt-en-de is unknown" in capsys.readouterr().err) == (expected[0] != "(")
    card = str(model_card(tmp_path / "out", CardDetails(license="other")))
    assert expected.removesuffix(" and") in " ".join(card.split())
    assert "(other)" not in card


def test_weights_that_could_run_code_are_refused_with_advice(opus, tmp_path, capsys):
    folder = shutil.copytree(opus, tmp_path / "opus-mt-en-de")
    torch.save(MarianMTModel.from_pretrained(opus).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert main(["convert", str(folder), str(tmp_path / "out")]) == 1
    assert "it has no model.safetensors, and other weights, which may run code, are never" in capsys.readouterr().err


def test_the_tags_of_a_multilingual_model_become_target_languages(tmp_path):
    save_opus(tmp_path / "opus-mt-en-ROMANCE", tags=TAGS, source_lang="en", target_lang="roa")
    original = AutoTokenizer.from_pretrained(tmp_path / "opus-mt-en-ROMANCE")
    convert.from_pretrained(tmp_path / "opus-mt-en-ROMANCE", tmp_path / "out")
    translator = Translator.load(str(tmp_path / "out"))
    # >>cmn<< and >>zho<< are both Chinese; English is not a target of a model from English
    names = {"zh": ">>cmn<<", "zh_Hans": ">>cmn_Hans<<", "fr": ">>fra<<", "zho": ">>zho<<"}
    assert set(translator.directions.targets) == set(names)
    for name, tag in names.items():
        assert translator.encode(["a dog"], target_lang=name) == [original(f"{tag} a dog")["input_ids"]]
    assert translator.translate(["a dog"], target_lang="fr", max_length=9)[0].text


def test_a_tag_that_is_written_in_a_text_gets_a_warning_with_advice(tmp_path, caplog):
    # OPUS-MT's users choose the target language so
    save_opus(tmp_path / "opus-mt-en-ROMANCE", tags=TAGS, source_lang="en", target_lang="roa")
    save_opus(tmp_path / "opus-mt-en-de")
    for name in ("opus-mt-en-ROMANCE", "opus-mt-en-de"):
        convert.from_pretrained(tmp_path / name, tmp_path / f"{name}-converted")
    multilingual, bilingual = (str(tmp_path / f"opus-mt-en-{name}-converted") for name in ("ROMANCE", "de"))
    loaded = Translator.load(multilingual)
    translate = partial(loaded.translate, target_lang="fr", max_length=9)
    pipe = partial(pipeline("translation", model=multilingual), tgt_lang="fr", max_length=9)
    for each in (translate, pipe):
        text_rules._warn_once.cache_clear()
        caplog.clear()
        each(["a dog", "1 >>fra<< 2"])
        Translator.load(bilingual).translate([">>fra<< a dog"], max_length=9)
        assert "tag" not in caplog.text
        each(["a dog", ">>fra<< a dog", " >>fra<< a cat"])
        assert caplog.text.count("remove it, and give the language as target_lang") == 1


def test_names_of_special_tokens_in_a_text_are_text(opus, tmp_path):
    _, tokenizer = convert.from_pretrained(opus, tmp_path / "out")
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "out")):
        ids = each("a </s> <pad> dog")["input_ids"]
        assert ids.index(each.eos_token_id) == len(ids) - 1
        assert each.pad_token_id not in ids


@pytest.mark.parametrize(
    ("flags", "languages", "reason"),
    [
        ([], {}, "--source_lang"),
        (["--target_lang", "fr"], {"source_lang": "en"}, "omit --target_lang"),
    ],
)
def test_wrong_languages_of_a_multilingual_model_are_errors(tmp_path, flags, languages, reason, capsys):
    save_opus(tmp_path / "model", tags=TAGS, **languages)
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), *flags]) == 1
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


_SMALL = {"vocab_size": 20, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
_SMALL |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
_IDS = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
OTHERS = {
    "T5": (
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        ),
        "not a marian but a t5 model",
    ),
    "BART": (
        lambda: BartForConditionalGeneration(BartConfig(**_SMALL, **_IDS)),
        "not a marian but a bart model",
    ),
    "M2M100": (
        lambda: M2M100ForConditionalGeneration(M2M100Config(**_SMALL, **_IDS)),
        "not a marian but a m2m_100 model",
    ),
    "FSMT": (
        lambda: FSMTForConditionalGeneration(
            FSMTConfig(
                langs=["en", "de"],
                src_vocab_size=20,
                tgt_vocab_size=20,
                **{name: value for name, value in _SMALL.items() if name != "vocab_size"},
                **_IDS,
            )
        ),
        "not a marian but a fsmt model",
    ),
    "GPT-2": (
        lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
        ),
        "not a marian but a gpt2 model",
    ),
    "a decoder of Marian": (
        lambda: MarianForCausalLM(MarianConfig(**_SMALL, **_IDS, scale_embedding=True, is_decoder=True)),
        "MarianForCausalLM",
    ),
    "separate vocabularies": (
        lambda: MarianMTModel(
            MarianConfig(
                **_SMALL,
                **_IDS,
                scale_embedding=True,
                share_encoder_decoder_embeddings=False,
                tie_word_embeddings=False,
                decoder_vocab_size=30,
            )
        ),
        "separate source and target vocabularies",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_without_equivalent_is_refused_in_one_line(tmp_path, name, capsys):
    build, reason = OTHERS[name]
    model = build()
    with pytest.raises(ValueError, match=reason):
        convert.from_marian(model)
    if name == "a decoder of Marian":
        return
    with pytest.raises(ValueError, match="is not a vanilla_transformer"):
        convert.to_marian(model)
    model.save_pretrained(tmp_path / "model")
    capsys.readouterr()
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("vanilla-transformer: Cannot convert: ")
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def move_last_token(tokenizer):
    """Return a tokenizer whose ids have a gap before the last token."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] += 7
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(content))
    return tokenizer


@pytest.mark.parametrize("kind", ["bpe", "unigram", "tags", "padded", "untied", "gap"])
def test_a_copy_as_marian_translates_the_same_with_its_own_tokenizer(small_model, tmp_path, kind):
    texts = [text for pair in PAIRS for text in pair]
    tokenizer = train_tokenizer(texts, 350, "unigram" if kind == "unigram" else "bpe")
    languages = {"source_lang": "en", "target_lang": "de"}
    if kind == "tags":
        add_tags(tokenizer, ["<2de>", "<2fr>"])
        languages = {"language_pairs": ["en-de", "en-fr"]}
    if kind == "gap":
        tokenizer = move_last_token(tokenizer)
    used = sorted(tokenizer.get_vocab().values())
    size = 384 if kind in ("padded", "untied") else used[-1] + 1
    languages["tie_word_embeddings"] = kind != "untied"
    model = small_model(vocab_size=size, lm_head_bias=True, layer_norm_eps=1e-5, **languages)
    model.lm_head.bias.data.normal_()
    if unused := sorted({*range(size)} - {*used}):
        model.generation_config.suppress_tokens = [7, *unused]
        model.generation_config.bad_words_ids = [[unused[0]], [9, unused[0]]]
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "marian"), "--to", "marian"]) == 0

    names = {file.name for file in (tmp_path / "marian").iterdir()}
    expected = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert names == {*expected, "README.md"}
    # a name that transformers 4 and 5 both know
    config = json.loads((tmp_path / "marian" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    marian = MarianMTModel.from_pretrained(tmp_path / "marian")
    copy = AutoTokenizer.from_pretrained(tmp_path / "marian")
    assert copy.pad_token_id == marian.config.pad_token_id == len(used) - 1 == marian.config.vocab_size - 1
    assert marian.generation_config.max_length == 64
    if unused:
        suppressed = copy.convert_ids_to_tokens(marian.generation_config.suppress_tokens)
        assert suppressed == tokenizer.convert_ids_to_tokens([7])
        assert marian.generation_config.bad_words_ids is None

    tag = "<2fr>" if kind == "tags" else ""
    translator = Translator(model, tokenizer)
    ids = translator.encode(SOURCES, target_lang="fr" if tag else None)
    batch = copy([tag + source for source in SOURCES], return_tensors="pt", padding=True)
    tokens = [tokenizer.convert_ids_to_tokens(row) for row in ids]
    assert [
        copy.convert_ids_to_tokens(row[: len(t)]) for row, t in zip(batch["input_ids"], tokens, strict=True)
    ] == tokens
    texts = copy.batch_decode(marian.generate(**batch, num_beams=1, max_length=20), skip_special_tokens=True)
    outputs = translator.translate_ids(ids, num_beams=1, max_length=20)
    assert texts == translator.decode([output.hypotheses[0] for output in outputs])

    # and back: with its languages, tags and translations
    assert main(["convert", str(tmp_path / "marian"), str(tmp_path / "back")]) == 0
    back = Translator.load(str(tmp_path / "back"))
    assert str(back.directions) == str(translator.directions)
    target = {"target_lang": "fr"} if tag else {}
    found = back.translate(SOURCES, **target, num_beams=1, max_length=20)
    assert [translation.text for translation in found] == texts


TRANSLATE_IN_TRANSFORMERS_4 = """
import importlib.util, json, sys
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
assert transformers.__version__.startswith("4.")
assert importlib.util.find_spec("hf_vanilla_transformer") is None
found = []
for folder, sentences in json.load(sys.stdin):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    output = model.generate(**tokenizer(sentences, return_tensors="pt", padding=True), num_beams=1, max_length=40)
    found.append(tokenizer.batch_decode(output, skip_special_tokens=True))
    translated = pipeline("translation", model=folder)(sentences[0], num_beams=1, max_length=40)
    assert translated[0]["translation_text"] == found[-1][0]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif("TRANSFORMERS_4" not in os.environ, reason="runs with `scripts/test.sh --all`")
def test_copies_as_marian_translate_100_sentences_the_same_in_transformers_4(opus, trained_on_multi30k, tmp_path):
    convert.from_pretrained(opus, tmp_path / "converted")
    _, _, trained, sentences, _ = trained_on_multi30k
    given = []
    expected = []
    # with SentencePiece's tokenizer, and with a byte-level BPE
    for folder, texts in (
        (tmp_path / "converted", [source for source, _ in PAIRS if source]),
        (trained, sentences),
    ):
        copy = tmp_path / f"{folder.name}-marian"
        convert.from_pretrained(folder, copy, to="marian")
        given.append([str(copy), texts[:100]])
        translations = Translator.load(str(folder)).translate(texts[:100], num_beams=1, max_length=40)
        expected.append([translation.text for translation in translations])

    command = [os.environ["TRANSFORMERS_4"], "-c", TRANSLATE_IN_TRANSFORMERS_4]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads(result.stdout.splitlines()[-1]) == expected


def test_ctranslate2s_own_converter_takes_a_copy_as_marian(saved, tmp_path):
    converters = pytest.importorskip("ctranslate2.converters")
    assert main(["convert", saved.path, str(tmp_path / "marian"), "--to", "marian"]) == 0
    converters.TransformersConverter(str(tmp_path / "marian")).convert(str(tmp_path / "ctranslate2"))


def test_a_converted_model_can_become_marian_again(opus, tmp_path):
    convert.from_pretrained(opus, tmp_path / "out")
    model, _ = convert.from_pretrained(tmp_path / "out", tmp_path / "back", to="marian")
    original = MarianMTModel.from_pretrained(opus)
    batch = AutoTokenizer.from_pretrained(tmp_path / "back")(SOURCES[:9], return_tensors="pt", padding=True)
    loaded = MarianMTModel.from_pretrained(tmp_path / "back")
    expected = original.generate(**batch, max_length=30)
    for each in (model, loaded):
        assert torch.equal(each.generate(**batch, max_length=30), expected)


def test_a_model_without_equivalent_is_not_made_marian(small_model, tmp_path, capsys):
    tokenizer = train_tokenizer(SOURCES, 300)
    small_model(vocab_size=len(tokenizer), position_embedding="learned").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "marian"]) == 1
    assert "learned positions" in capsys.readouterr().err
    assert (
        main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "marian", "--source_lang", "x"]) == 1
    )
    assert "languages of a model of this package are its own" in capsys.readouterr().err
    small_model(vocab_size=290).save_pretrained(tmp_path / "model")
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "marian"]) == 1
    assert "290 tokens" in capsys.readouterr().err


def test_card_of_a_copy_as_marian_says_how_it_differs(saved, tmp_path):
    convert.from_pretrained(saved.path, tmp_path / "marian", to="marian")
    card = (tmp_path / "marian" / "README.md").read_text(encoding="utf-8")
    assert "trust_remote_code" not in card
    assert "- marian" in card
    assert "at most 64 tokens, not source length + 50" in " ".join(card.split())
    assert "output limited to 64 tokens" in card
    assert "## Results of the original model" in card
    assert "trust_remote_code=True" in str(model_card(saved.path))
