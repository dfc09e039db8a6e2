"""The paper's configurations by name (Tables 2 and 3), and a small one for the examples.

A preset combines a model with its training settings, because rows D3 and D4 of Table 3 differ from base only in label
smoothing.
"""

from dataclasses import dataclass, field

from ..flags import Settings
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig

SMALL_TEXT = 200_000  # pairs, below which base overfits and tiny suffices


@dataclass(frozen=True)
class Preset:
    """Changes to the defaults of `VanillaTransformerConfig` and `VanillaTransformerTrainingArguments` (both base)."""

    model: Settings = field(default_factory=dict)
    training: Settings = field(default_factory=dict)


def _heads(num_heads: int) -> Preset:
    # Rows A keep the amount of computation constant, so that the heads share the 512 columns of base
    width = 512 // num_heads
    return Preset({"num_heads": num_heads, "d_k": width, "d_v": width})


def _layers(number: int) -> Settings:
    return {"num_encoder_layers": number, "num_decoder_layers": number}


PRESETS: dict[str, Preset] = {
    # A size that suits Multi30k (Wu et al. 2021, "Transformer-Tiny"): about 20 minutes on two cores
    "tiny": Preset(
        {
            "vocab_size": 5000,
            "d_model": 128,
            "num_encoder_layers": 4,
            "num_decoder_layers": 4,
            "num_heads": 4,
            "d_ff": 256,
            "dropout": 0.3,
            "initializer_range": 0.02,
        },
        {
            "max_tokens": 1024,
            "learning_rate": 0.7,
            "warmup_steps": 1500,
            "max_steps": 7500,
            "save_steps": 500,
            "logging_steps": 100,
        },
    ),
    "base": Preset(),
    "big": Preset(
        {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
        # a checkpoint every ten minutes at the paper's one second per step; the last 20 are averaged
        {"max_steps": 300_000, "save_steps": 600, "save_total_limit": 20},
    ),
    "A1": _heads(1),
    "A2": _heads(4),
    "A3": _heads(16),
    "A4": _heads(32),
    "B1": Preset({"d_k": 16}),
    "B2": Preset({"d_k": 32}),
    "C1": Preset(_layers(2)),
    "C2": Preset(_layers(4)),
    "C3": Preset(_layers(8)),
    "C4": Preset({"d_model": 256, "d_k": 32, "d_v": 32}),
    "C5": Preset({"d_model": 1024, "d_k": 128, "d_v": 128}),
    "C6": Preset({"d_ff": 1024}),
    "C7": Preset({"d_ff": 4096}),
    "D1": Preset({"dropout": 0.0}),
    "D2": Preset({"dropout": 0.2}),
    "D3": Preset({}, {"label_smoothing_factor": 0.0}),
    "D4": Preset({}, {"label_smoothing_factor": 0.2}),
    "E": Preset({"position_embedding": "learned"}),
}


def preset(name: str) -> Preset:
    """Return the preset called `name`.

    Raises:
        ValueError: for an unknown name, listing the known ones.
    """
    if name not in PRESETS:
        raise ValueError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def fit_to(pairs: int) -> tuple[str, Settings]:
    """Return the preset that fits a text of so many pairs, and its training settings.

    Below `SMALL_TEXT` pairs it is tiny, trained for an update per 3 pairs, which is some 20 epochs of short sentences,
    but for at least 2,000 updates. The warm-up is at most a fifth of them; the factor is scaled with it so that the
    learning rate has the same peak, factor / sqrt(d_model * warmup_steps).
    """
    if pairs >= SMALL_TEXT:
        return "base", PRESETS["base"].training
    training = PRESETS["tiny"].training
    updates = max(2000, pairs // 3)
    warmup = min(training["warmup_steps"], updates // 5)
    factor = round(training["learning_rate"] * (warmup / training["warmup_steps"]) ** 0.5, 3)
    return "tiny", {**training, "max_steps": updates, "warmup_steps": warmup, "learning_rate": factor}


def paper_config(name: str, **overrides) -> VanillaTransformerConfig:
    """Return the configuration of a row of Table 3 ("base", "big", "A1" ... "E") or of "tiny", with `overrides`.

    Raises:
        ValueError: for an unknown name or a field out of range.
    """
    return VanillaTransformerConfig(**{**preset(name).model, **overrides})
