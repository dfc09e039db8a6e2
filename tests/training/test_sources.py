"""Training on several sources and in several directions, from the command line to the saved model."""

import json
import logging
import re
import subprocess
import sys
from collections import Counter

import pytest
from accelerate.data_loader import BatchSamplerShard
from sample_text import prepare_text
from small import write_moses, write_phrases
from transformers import AutoTokenizer, pipeline

from hf_vanilla_transformer import (
    MaxTokensBatchSampler,
    Translator,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.data.tokenizer import special_tokens
from hf_vanilla_transformer.inference.exports import export_model
from hf_vanilla_transformer.training.recipes import parse_arguments

PHRASES = splits()["train"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def texts(tmp_path) -> dict[str, str]:
    """Three texts, as a Moses pair, JSON lines, and a prepared folder; the last with the vocabulary that all share."""
    moses = write_phrases(tmp_path / "a", PHRASES[:150])
    rows = [{"en": phrase.en, "de": phrase.de} for phrase in PHRASES[150:250]]
    lines = tmp_path / "b.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_phrases(tmp_path / "c", PHRASES[250:450])
    text = TextFile(("en", "de"), str(tmp_path / "c"))
    prepare_text(text, tmp_path / "prepared", vocab_size=400)
    return {"moses": str(moses), "jsonl": str(lines), "prepared": str(tmp_path / "prepared")}


@pytest.fixture
def directed(tmp_path) -> str:
    """JSON lines that name their languages: 60 pairs from English and 40 from German."""
    rows = [
        {"source": phrase.en, "target": phrase.de, "source_lang": "en", "target_lang": "de"} for phrase in PHRASES[:60]
    ]
    rows += [
        {"source": phrase.de, "target": phrase.en, "source_lang": "de", "target_lang": "en"}
        for phrase in PHRASES[60:100]
    ]
    file = tmp_path / "directed.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def bidirectional(train, run_flags, directed, tmp_path):
    """A function that trains a model in both directions and returns its folder."""

    def run(*more: str) -> str:
        flags = ["--train_file", directed, "--language_pairs", "en-de", "de-en", "--vocab_size", "400", *more]
        train(*run_flags(tmp_path / "both", *flags))
        return str(tmp_path / "both")

    return run


def test_sources_of_all_formats_are_used_by_weight_on_one_and_two_processes(train, run_flags, texts, tmp_path, capfd):
    flags = ["--train_file", *texts.values(), "--train_weights", "1", "2", "0.5", "--bpe_dropout", "0.1"]
    run = train(*run_flags(tmp_path / "run", *flags, "--max_tokens", "128"))
    mixture = run.train_dataset
    sizes = mixture.sizes
    assert sizes == [150, 100, 200]
    for processes in (1, 2):
        sampler = mixture.sampler(128, seed=run.args.seed, readers=1)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            shards = [BatchSamplerShard(sampler, processes, i, even_batches=False) for i in range(processes)]
            used: Counter[int] = Counter()
            for number in (number for shard in shards for batch in shard for number in batch):
                pair = number % len(mixture)
                used[0 if pair < 150 else 1 if pair < 250 else 2] += 1
            assert [used[i] for i in range(3)] == [150, 200, 100]
    printed = capfd.readouterr().err
    assert "train, a en-de: 150 of 150 pairs; dropped: none" in printed
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert [(source["name"], source["pairs"], source["weight"]) for source in record["sources"]] == [
        ("a", 150, 1.0),
        ("b.jsonl", 100, 2.0),
        ("prepared", 200, 0.5),
    ]
    assert "| b.jsonl | en-de | 100 | none | 2.0 |" in (tmp_path / "run" / "README.md").read_text()


def test_lines_that_name_their_languages_mix_with_other_texts(train, run_flags, directed, texts, tmp_path, capfd):
    flags = ["--train_file", directed, texts["moses"], "--language_pairs", "en-de", "de-en", "--vocab_size", "400"]
    train(*run_flags(tmp_path / "run", *flags, "--validation_file", directed, "--max_tokens", "128"))
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert [(source["name"], source["direction"], source["pairs"]) for source in record["sources"]] == [
        ("directed.jsonl", "en-de", 60),
        ("directed.jsonl", "de-en", 40),
        ("a", "de-en", 150),
    ]
    printed = capfd.readouterr().err
    assert "train, directed.jsonl en-de: 60 of 60 pairs; dropped: none" in printed
    assert "train, a de-en: 150 of 150 pairs; dropped: none" in printed


def test_a_temperature_uses_the_largest_source_once(train, run_flags, texts, tmp_path):
    flags = ["--train_file", texts["moses"], texts["jsonl"], "--sampling_temperature", "2", "--vocab_size", "400"]
    mixture = train(*run_flags(tmp_path / "run", *flags)).train_dataset
    assert mixture.weights == pytest.approx([1.0, (mixture.sizes[1] / mixture.sizes[0]) ** -0.5])


def test_one_plain_source_trains_as_before(train, run_flags, texts, tmp_path):
    run = train(*run_flags(tmp_path / "run", "--train_file", texts["moses"], "--vocab_size", "400"))
    lengths = run.train_dataset.lengths
    sampler = run.train_dataset.sampler(64, seed=run.args.seed, readers=1)
    assert list(sampler) == list(MaxTokensBatchSampler(*lengths, 64, seed=run.args.seed))
    settings = (tmp_path / "run" / "settings.yaml").read_text()
    assert f"train_file: {texts['moses']}" in settings


@pytest.mark.slow
def test_validation_translates_sources_with_their_tags(bidirectional, texts, monkeypatch):
    validated: list[list[int]] = []

    def record(translator, sources, **settings):
        validated.extend([int(token) for token in source] for source in sources)
        return translate_ids(translator, sources, **settings)

    translate_ids = Translator.translate_ids
    monkeypatch.setattr(Translator, "translate_ids", record)
    folder = bidirectional("--validation_file", texts["moses"], "--eval_strategy", "steps", "--eval_steps", "2")
    translator = Translator.load(folder)
    expected = translator.encode([phrase.en for phrase in PHRASES[:150]], "en", "de")
    expected += translator.encode([phrase.de for phrase in PHRASES[:150]], "de", "en")
    # during training and at its end, but for a pair that cleaning drops
    assert len(validated) > 500
    assert set(map(tuple, validated)) <= set(map(tuple, expected))


@pytest.mark.slow
def test_a_model_of_two_directions_translates_both(bidirectional, texts, tmp_path, capsys, caplog):
    schedule = ("--eval_strategy", "steps", "--eval_steps", "2", "--metric_for_best_model", "de-en_loss")
    folder = bidirectional("--validation_file", texts["moses"], *schedule)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.language_pairs == ["en-de", "de-en"]
    assert (model.config.source_lang, model.config.target_lang) == (None, None)
    assert special_tokens(tokenizer)[-2:] == ["<2de>", "<2en>"]
    assert len(tokenizer) == model.config.vocab_size == 400
    state = json.loads((tmp_path / "both" / "trainer_state.json").read_text())
    log = state["log_history"]
    assert state["best_metric"] == min(entry["eval_de-en_loss"] for entry in log if "eval_de-en_loss" in entry)
    assert {key for entry in log for key in entry if key.endswith("bleu")} == {"eval_en-de_bleu", "eval_de-en_bleu"}
    assert "en to de, de to en" in (tmp_path / "both" / "README.md").read_text()
    record = json.loads((tmp_path / "both" / "training.json").read_text())
    assert [score["text"] for score in record["scores"]] == ["validation text, en-de", "validation text, de-en"]

    text = PHRASES[0].en
    expected = translate(model, tokenizer, [text], source_lang="en", target_lang="de")[0]
    ids = tokenizer.convert_tokens_to_ids(["<2de>"]) + tokenizer(text)["input_ids"]
    from torch import tensor

    assert tokenizer.decode(model.generate(tensor([ids]))[0], skip_special_tokens=True) == expected
    translator = pipeline("translation", model=folder, src_lang="en", tgt_lang="de")
    assert translator(text)[0]["translation_text"] == expected
    assert translator([text, text], batch_size=2) == [{"translation_text": expected}] * 2
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    with pytest.raises(ValueError, match="translates into de, en, not into"):
        translator(text, tgt_lang="fr")
    capsys.readouterr()
    main(
        [
            "evaluate",
            folder,
            "--test_file",
            texts["moses"],
            texts["moses"],
            "--source_lang",
            "de",
            "--target_lang",
            "en",
        ]
    )
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(result["text"], result["direction"]) for result in results] == [("a", "de-en")] * 2
    assert {"bleu", "chrf", "chrf++", "ter"} <= results[0].keys()
    assert main(["evaluate", folder, "--test_file", texts["moses"]]) == 2
    assert "choose one as the target language" in capsys.readouterr().err


@pytest.mark.slow
def test_the_pipeline_of_a_saved_folder_knows_the_languages_without_the_package(bidirectional):
    folder = bidirectional()
    expected = pipeline("translation", model=folder)(PHRASES[0].en, src_lang="en", tgt_lang="de")
    code = f"""if True:
        import sys
        sys.modules["hf_vanilla_transformer"] = None
        from transformers import pipeline
        translator = pipeline("translation", model={folder!r}, trust_remote_code=True)
        print(translator({PHRASES[0].en!r}, src_lang="en", tgt_lang="de"))"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.strip() == str(expected), output.stderr[-2000:]


def test_fine_tuning_onto_new_languages_adds_their_tags(train, run_flags, texts, tmp_path, capfd):
    flags = ["--train_file", texts["moses"], "--vocab_size", "400"]
    train(*run_flags(tmp_path / "first", *flags))
    more = ["--model_name_or_path", str(tmp_path / "first"), "--lr_scheduler_type", "constant"]
    more += ["--train_file", texts["moses"], texts["moses"], "--language_pairs", "en-de", "de-en", "--max_steps", "1"]
    flags = [word for word in run_flags(tmp_path / "second") if word not in ("--preset", "tiny")]
    for name in ("d_model", "num_heads", "num_encoder_layers", "num_decoder_layers", "d_ff"):
        at = flags.index(f"--{name}")
        del flags[at : at + 2]
    train(*flags, *more)
    assert "Added the tags <2de> <2en>" in capfd.readouterr().err
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "second")
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "second")
    assert model.config.vocab_size == len(tokenizer) == 402
    assert model.model.shared.weight.shape[0] == model.lm_head.weight.shape[0] == 402
    assert tokenizer.convert_tokens_to_ids(["<2de>", "<2en>"]) == [400, 401]
    assert train(*flags, *more) is None  # the run is finished


def test_a_model_that_is_tuned_on_one_new_direction_keeps_its_own(small_model, run_flags, tmp_path):
    small_model(source_lang="en", target_lang="de").save_pretrained(tmp_path / "model")
    start = ["--model_name_or_path", str(tmp_path / "model"), "--output_dir", str(tmp_path / "run"), "--use_cpu"]
    for pair, directions, known in (("en-fr", ["en-de", "en-fr"], ("en", None)), ("en-de", None, ("en", "de"))):
        (recipe,) = parse_arguments([*start, "--language_pairs", pair])
        assert recipe.config.language_pairs == directions
        assert (recipe.config.source_lang, recipe.config.target_lang) == known
        # the text itself is only of the new direction
        assert recipe.data.language_pairs == (["en-fr"] if pair == "en-fr" else None)


def test_pretraining_in_both_directions_and_tuning_in_one(train, run_flags, texts, tmp_path):
    """Bi-SimCut (arXiv:2206.02368), with the flags of the guide."""
    simcut = ["--simcut_alpha", "3", "--simcut_p", "0.1", "--max_steps", "2"]
    both = ["--train_file", texts["moses"], texts["moses"], "--language_pairs", "en-de", "de-en"]
    train(*run_flags(tmp_path / "both", *both, *simcut, "--vocab_size", "400"))
    start = ["--model_name_or_path", str(tmp_path / "both"), "--output_dir", str(tmp_path / "one"), "--use_cpu"]
    run = train(*start, "--train_file", texts["moses"], "--language_pairs", "en-de", *simcut, "--max_tokens", "256")
    tag = AutoTokenizer.from_pretrained(tmp_path / "one").convert_tokens_to_ids("<2de>")
    assert {int(run.train_dataset[i]["input_ids"][0]) for i in range(20)} == {tag}
    assert run.model.config.language_pairs == ["en-de", "de-en"]
    assert "simcut_alpha: 3.0" in (tmp_path / "one" / "settings.yaml").read_text()
    assert Translator.load(str(tmp_path / "one")).translate([PHRASES[0].en], source_lang="en", target_lang="de")


def test_a_tag_marks_the_sources_of_one_text(train, run_flags, texts, tmp_path, capsys, monkeypatch):
    flags = ["--train_file", texts["moses"], texts["jsonl"], "--source_tag", "", "<bt>", "--vocab_size", "400"]
    run = train(*run_flags(tmp_path / "run", *flags))
    tag = AutoTokenizer.from_pretrained(tmp_path / "run").convert_tokens_to_ids("<bt>")
    size = run.train_dataset.sizes[0]
    tagged = [
        bool(run.train_dataset[i]["input_ids"][0] == tag) for i in (0, size - 1, size, len(run.train_dataset) - 1)
    ]
    assert tagged == [False, False, True, True]
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--test_file", texts["moses"], "--tag", "<other>"]) == 1
    assert "no tag <other>; it has <bt>" in capsys.readouterr().err
    main(["evaluate", str(tmp_path / "run"), "--test_file", texts["moses"], "--tag", "<bt>"])
    assert json.loads(capsys.readouterr().out)["sentences"] == 150


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--train_weights", "1", "2"],
            r"--train_weights takes one value per source \(3\), or one for all, but has 2",
        ),
        (["--source_tag", "<a>", "<b>"], r"--source_tag takes one value per source \(3\), or one for all, but has 2"),
        (
            ["--language_pairs", "en-de", "de-en"],
            r"--language_pairs takes one value per source \(3\), or one for all, but has 2",
        ),
        (
            ["--validation_file", "x", "y"],
            r"--validation_file takes one value per source \(3\), or one for all, but has 2",
        ),
        (["--source_tag", "bt"], "'bt' cannot be a tag"),
        (["--source_tag", "<unk>"], "<unk> cannot be a tag"),
        (["--streaming"], "--streaming reads a single folder made by `prepare`"),
        (["--language_pairs", "en-fr"], "There is no file"),
        (["--source_tag", "<2de>"], "tags that start with <2 are those of target languages"),
        (["--bpe_dropout", "0.1", "--streaming"], "--streaming reads a single folder made by `prepare`"),
        (["--tokenizer_model", "unigram"], "has its own tokenizer"),
        (["--filter_language"], "is already clean"),
    ],
)
def test_flags_that_do_not_fit_the_sources_are_refused(train, run_flags, texts, tmp_path, flags, message):
    with pytest.raises(ValueError, match=message):
        train(*run_flags(tmp_path / "run", "--train_file", *texts.values(), *flags))
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--language_pairs", "en-de", "--source_lang", "en"], "give either --language_pairs or"),
        (["--train_weights", "1", "--sampling_temperature", "2"], "give either --train_weights or"),
        (["--train_weights", "0"], "must be positive numbers"),
        (["--train_weights", "nan"], "must be positive numbers"),
        (["--sampling_temperature", "0.5"], "must be at least 1"),
        (["--bpe_dropout", "1"], "bpe_dropout.* must be at least 0 and below 1"),
        (["--filter_language", "--no_clean"], "part of cleaning"),
        (["--tokenizer_model", "wordpiece"], "invalid choice: 'wordpiece'"),
        (["--normalization", "nfd"], "invalid choice: 'nfd'"),
        (["--bpe_codes", "codes"], "--bpe_codes needs --tokenizer_model subword-nmt"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(run_flags, tmp_path, capsys, flags, message):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(run_flags(tmp_path / "run", *flags))
    assert stop.value.code == 2
    assert re.search(message, capsys.readouterr().err, re.IGNORECASE)


def test_unigram_vocabularies_and_unknown_languages_are_refused_before_anything_is_learned(
    train, run_flags, texts, tmp_path
):
    write_moses(tmp_path / "a", eng=[phrase.en for phrase in PHRASES[:150]])
    for flags, message in (
        (["--bpe_dropout", "0.1", "--tokenizer_model", "unigram"], "needs --tokenizer_model bpe"),
        (["--filter_language", "--source_lang", "eng", "--target_lang", "de"], "cannot identify 'eng'"),
    ):
        with pytest.raises(ValueError, match=message):
            train(*run_flags(tmp_path / "run", "--train_file", texts["moses"], *flags))
        assert not (tmp_path / "run" / "tokenizer.json").exists()


def test_the_best_model_is_chosen_by_a_validation_text_that_exists(bidirectional, texts):
    schedule = ("--validation_file", texts["moses"], "--eval_strategy", "steps", "--metric_for_best_model")
    with pytest.raises(ValueError, match="must be one of en-de_loss"):
        bidirectional(*schedule, "en-fr_loss")
    with pytest.raises(SystemExit):
        bidirectional(*schedule, "de-en_chrf")


def test_a_line_with_another_direction_is_named(train, run_flags, directed, tmp_path):
    with open(directed, "a") as file:
        file.write('{"source": "a", "target": "b", "source_lang": "en", "target_lang": "nl"}\n')
    with pytest.raises(ValueError, match=r"directed.jsonl, line 101: the direction en-nl is not among"):
        train(*run_flags(tmp_path / "run", "--train_file", directed, "--language_pairs", "en-de", "de-en"))


def test_a_prepared_folder_with_another_vocabulary_is_refused(train, run_flags, texts, tmp_path):
    train_tokenizer([phrase.en for phrase in PHRASES], 300).save_pretrained(tmp_path / "other")
    write_phrases(tmp_path / "d", PHRASES[:100])
    text = TextFile(("en", "de"), str(tmp_path / "d"))
    prepare_text(text, tmp_path / "second", vocab_size=300)
    with pytest.raises(ValueError, match="second was prepared with a different vocabulary"):
        train(*run_flags(tmp_path / "run", "--train_file", texts["prepared"], str(tmp_path / "second")))


@pytest.mark.parametrize("normalization", ["none", "nfkc"])
def test_a_unigram_vocabulary_trains(train, run_flags, texts, tmp_path, normalization):
    flags = ["--train_file", texts["moses"], "--tokenizer_model", "unigram", "--vocab_size", "350"]
    train(*run_flags(tmp_path / "run", *flags, "--normalization", normalization))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"] == "Unigram"
    text = "Ein ﬁnger, naïve Wörter 漢字!"
    expected = text if normalization == "none" else text.replace("ﬁ", "fi")
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == expected


@pytest.mark.parametrize("model", ["word", "char"])
def test_a_vocabulary_of_symbols_trains_and_its_export_translates_alike(train, run_flags, tmp_path, model):
    pairs = {"letters": ["a b c", "b c", "c a"], "sounds": ["AH B K", "B K", "K AH"]}
    prefix = write_moses(tmp_path / "words", **{side: 30 * lines for side, lines in pairs.items()})
    languages = ["--source_lang", "letters", "--target_lang", "sounds", "--no_clean"]
    train(*run_flags(tmp_path / "run", "--train_file", str(prefix), *languages, "--tokenizer_model", model))
    lines = [*pairs["letters"], *pairs["sounds"]]
    vocabulary = {symbol for line in lines for symbol in (line.split() if model == "word" else line)}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens) == vocabulary
    export_model(tmp_path / "run", tmp_path / "export", "ctranslate2")
    exported = Translator.load([str(tmp_path / "export")], "ctranslate2").translate(pairs["letters"])
    ours = Translator.load([str(tmp_path / "run")]).translate(pairs["letters"])
    assert [each.text for each in exported] == [each.text for each in ours]


def test_given_codes_are_those_of_training_and_of_prepared_text(train, run_flags, texts, tmp_path, capsys):
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\ne n</w>\nT h\nTh e</w>\n")
    flags = ["--tokenizer_model", "subword-nmt", "--bpe_codes", str(codes)]
    train(*run_flags(tmp_path / "run", "--train_file", texts["moses"], *flags, "--bpe_dropout", "0.1"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert tokenizer.tokenize("The men") == ["The</w>", "m", "en</w>"]
    prepared = ["prepare", texts["moses"], "--source_lang", "en", "--target_lang", "de", "--workers", "1"]
    assert main([*prepared, *flags, "--output_dir", str(tmp_path / "shards")]) == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "shards").get_vocab() == tokenizer.get_vocab()
    # the content counts, and a finished folder stays finished
    assert main([*prepared, *flags, "--output_dir", str(tmp_path / "shards")]) == 0
    codes.write_text("#version: 0.2\ne n</w>\n")
    capsys.readouterr()
    assert main([*prepared, *flags, "--output_dir", str(tmp_path / "shards")]) == 1
    assert "bpe_codes" in capsys.readouterr().err
    assert main([*prepared, "--bpe_codes", str(codes), "--output_dir", str(tmp_path / "other")]) == 2
    assert "--bpe_codes needs --tokenizer_model subword-nmt." in capsys.readouterr().err
