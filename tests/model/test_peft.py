"""PEFT adapters and resized vocabularies work as with the models of transformers."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
)
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.loading import load_model
from hf_vanilla_transformer.sharing.convert import to_marian

ROWS = [{"input_ids": [5, 6, 7, 2], "labels": [8, 9, 2]}, {"input_ids": [6, 5, 2], "labels": [9, 8, 7, 2]}] * 4


def lora(model):
    config = LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, target_modules=["q_proj", "v_proj"])
    return get_peft_model(model, config)


def train(model, folder, steps=20):
    args = Seq2SeqTrainingArguments(
        folder,
        max_steps=steps,
        learning_rate=3e-2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = Seq2SeqTrainer(model, args, train_dataset=ROWS, data_collator=Seq2SeqCollator(0, 1))
    trainer.train()


def loss(model):
    with torch.no_grad():
        return model(
            **{name: x for name, x in Seq2SeqCollator(0, 1)(ROWS).items() if name != "decoder_input_ids"}
        ).loss


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_lora_learns_without_changing_the_base_model(small_model, tmp_path):
    before = {name: weight.clone() for name, weight in small_model().state_dict().items()}
    model = small_model()
    adapted = lora(model)
    start = loss(adapted)
    train(adapted, tmp_path)
    adapted.eval()
    assert loss(adapted) < start - 0.05
    base = {
        name.replace(".base_layer", ""): x
        for name, x in adapted.base_model.model.state_dict().items()
        if "lora" not in name
    }
    assert base.keys() == before.keys()
    for name, weight in base.items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_saved_and_merged_adapter_keeps_its_outputs(small_model, tmp_path):
    adapted = lora(small_model())
    train(adapted, tmp_path / "run", 5)
    adapted.eval()
    adapted.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(small_model(), tmp_path / "adapter").eval()
    source = torch.tensor([[5, 6, 7, 2]])
    expected = adapted.generate(input_ids=source, num_beams=4, max_new_tokens=12)
    assert again.generate(input_ids=source, num_beams=4, max_new_tokens=12).tolist() == expected.tolist()
    assert small_model().generate(source, num_beams=4, max_new_tokens=12).tolist() != expected.tolist()
    merged = again.merge_and_unload()
    assert type(merged) is VanillaTransformerForConditionalGeneration
    assert merged.generate(source, num_beams=4, max_new_tokens=12).tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("modules", [["shared"], ["lm_head"], ["shared", "lm_head"], ["embed_tokens"]])
def test_a_merged_model_with_trained_embeddings_reloads_with_them(small_model, tmp_path, modules):
    tokens = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    marian = MarianMTModel(MarianConfig(vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, **tokens))
    # the control, which does not call the module of that name
    models = [marian, small_model()] if modules == ["shared"] else [small_model()]
    for model in models:
        config = LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q_proj"], modules_to_save=modules)
        adapted = get_peft_model(model, config)
        train(adapted, tmp_path / "run", 3)
        expected = loss(adapted.eval())
        merged = adapted.merge_and_unload().eval()
        torch.testing.assert_close(loss(merged), expected)
        folder = tmp_path / type(merged).__name__
        merged.save_pretrained(folder)
        torch.testing.assert_close(loss(type(merged).from_pretrained(folder).eval()), expected)
        # saving has not changed the model
        torch.testing.assert_close(loss(merged), expected)
    loaded = load_model(str(folder)).eval()
    torch.testing.assert_close(loss(loaded), expected)
    torch.testing.assert_close(loss(to_marian(merged).eval()), expected, atol=1e-3, rtol=0)


def test_a_model_that_is_untied_by_its_configuration_alone_reloads(small_model, tmp_path):
    model = small_model()
    expected = loss(model)
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path / "whole")
    model.model.save_pretrained(tmp_path / "inner")
    again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "whole").eval()
    torch.testing.assert_close(loss(again), expected)
    inner, report = VanillaTransformerModel.from_pretrained(tmp_path / "inner", output_loading_info=True)
    assert not any(report.values())
    assert torch.equal(inner.decoder.embed_tokens.weight, model.model.shared.weight)


@pytest.mark.parametrize("size", [61, 40])
def test_resizing_keeps_the_tied_matrix_and_its_rows(small_model, tmp_path, size):
    model = small_model()
    old = model.model.shared.weight.detach().clone()
    model.resize_token_embeddings(size, mean_resizing=False)
    matrices = (model.model.shared, model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head)
    assert len({matrix.weight.data_ptr() for matrix in matrices}) == 1
    assert model.config.vocab_size == model.lm_head.out_features == size
    rows = min(size, len(old))
    torch.testing.assert_close(model.lm_head.weight[:rows], old[:rows], rtol=0, atol=0)
    model.save_pretrained(tmp_path)
    again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path).eval()
    source, target = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])
    logits = again(input_ids=source, decoder_input_ids=target).logits
    assert logits.shape[-1] == size
    states = model.model(input_ids=source, decoder_input_ids=target).last_hidden_state
    torch.testing.assert_close(logits, F.linear(states, model.model.shared.weight))


@pytest.mark.parametrize("size", [61, 40])
def test_resizing_keeps_every_matrix_of_an_untied_model(small_model, tmp_path, size):
    model = small_model(tie_word_embeddings=False)
    tables = {"encoder": model.model.encoder, "decoder": model.model.decoder}
    before = {name: stack.embed_tokens.weight.detach().clone() for name, stack in tables.items()}
    before["output"] = model.lm_head.weight.detach().clone()
    assert not torch.equal(before["encoder"], before["decoder"])
    model.resize_token_embeddings(size, mean_resizing=False)
    model.save_pretrained(tmp_path)
    for each in (model, VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path).eval()):
        after = {
            "encoder": each.model.encoder.embed_tokens.weight,
            "decoder": each.model.decoder.embed_tokens.weight,
            "output": each.lm_head.weight,
        }
        rows = min(size, 50)
        for name, old in before.items():
            assert len(after[name]) == size
            assert torch.equal(after[name][:rows], old[:rows]), name
    assert each.get_input_embeddings() is each.model.encoder.embed_tokens


def test_every_weight_of_an_untied_model_gets_a_gradient(small_model):
    model = small_model(tie_word_embeddings=False)
    model(input_ids=torch.tensor([[5, 6, 2]]), labels=torch.tensor([[7, 8, 2]])).loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_an_older_untied_model_with_an_unused_matrix_loads(small_model, tmp_path, capfd):
    model = small_model(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.shared.weight"] = torch.zeros(50, 32)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert "shared" not in capfd.readouterr().err
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_trainer_may_build_an_adapter_for_each_run(small_model, tmp_path):
    args = VanillaTransformerTrainingArguments(
        str(tmp_path), max_steps=2, max_tokens=32, use_cpu=True, disable_tqdm=True, eval_bleu=False, save_strategy="no"
    )
    trainer = VanillaTransformerTrainer(
        None, args, Seq2SeqCollator(0, 1), model_init=lambda: lora(small_model()), train_dataset=ROWS
    )
    assert trainer.train().global_step == 2
