"""The paper's configurations by name (Tables 2 and 3), and a small one for the examples, from `presets.yaml`.

A preset combines a model with its training settings, because rows D3 and D4 of Table 3 differ from base only in label
smoothing.
"""

from dataclasses import fields
from pathlib import Path

from ..errors import UserError
from ..files import read_yaml
from ..flags import Settings
from ..model.configuration_vanilla_transformer import ALIASES_OF_TWO, VanillaTransformerConfig
from .schedule import factor_with_same_peak

SMALL_TEXT = 200_000  # pairs, below which base overfits and tiny suffices
PAIRS_PER_UPDATE = 3  # in a small text, so that it is read some 20 times
PAIRS_PER_BATCH = 60  # about, of short sentences, in a batch of tiny


class Preset:
    """Changes to the defaults of `VanillaTransformerConfig` and `VanillaTransformerTrainingArguments` (both base)."""

    def __init__(self, settings: Settings):
        in_config = {field.name for field in fields(VanillaTransformerConfig)}
        self.model = {flag: value for flag, value in settings.items() if flag in in_config}
        self.training = {flag: value for flag, value in settings.items() if flag not in in_config}


PRESETS = {name: Preset(settings) for name, settings in read_yaml(Path(__file__).with_name("presets.yaml")).items()}


def preset(name: str) -> Preset:
    """Return the preset called `name`.

    Raises:
        ValueError: for an unknown name, listing the known ones.
    """
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def fit_to(pairs: int, updates: int | None = None, warmup: float | None = None) -> tuple[str, Settings]:
    """Return the preset that fits a text of so many pairs, and its training settings.

    Below `SMALL_TEXT` pairs it is tiny, trained for an update per 3 pairs, which is some 20 epochs of short sentences,
    but for at least 2,000 updates. The warm-up is at most a fifth of them; the factor keeps the peak of the learning
    rate.

    Args:
        updates: number of updates, if it is given.
        warmup: number of updates of the warm-up, if it is given.
    """
    if pairs >= SMALL_TEXT:
        return "base", PRESETS["base"].training
    training = PRESETS["tiny"].training
    updates = updates or max(2000, pairs // PAIRS_PER_UPDATE)
    # a negative one is refused with the other flags, once the preset is known
    if not warmup or warmup < 0:
        warmup = max(1, min(training["warmup_steps"], updates // 5))
    factor = factor_with_same_peak(training["learning_rate"], training["warmup_steps"], warmup)
    fitted = {"max_steps": updates, "warmup_steps": warmup, "learning_rate": round(factor, 3)}
    return "tiny", {**training, **fitted}


def paper_config(name: str, **overrides) -> VanillaTransformerConfig:
    """Return the configuration of a row of Table 3 ("base", "big", "A1" ... "E") or of "tiny", with `overrides`.

    Raises:
        ValueError: for an unknown name, of a row or of an override, or a field out of range.
    """
    names = {field.name for field in fields(VanillaTransformerConfig)} | VanillaTransformerConfig.attribute_map.keys()
    if unknown := sorted(overrides.keys() - names - {"attn_implementation"}):
        known = ", ".join(VanillaTransformerConfig.__annotations__)
        raise UserError(f"A configuration has no field {unknown[0]!r}; its fields are {known}.")
    replaced = {VanillaTransformerConfig.attribute_map.get(field, field) for field in overrides}
    replaced |= {ALIASES_OF_TWO[field] for field in overrides if field in ALIASES_OF_TWO}
    model = {field: value for field, value in preset(name).model.items() if field not in replaced}
    return VanillaTransformerConfig(**model, **overrides)
