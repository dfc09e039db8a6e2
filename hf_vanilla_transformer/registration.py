"""Registers the model with transformers' Auto classes, as soon as somebody uses them.

Those classes take seconds to import, and so does the model. `vanilla-transformer --help` needs neither, so
registration follows whichever of the two is imported last.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_CONFIG_AUTO, _MODEL_AUTO = (f"transformers.models.auto.{name}_auto" for name in ("configuration", "modeling"))
_CONFIG, _MODEL = (f"{__package__}.{name}_vanilla_transformer" for name in ("configuration", "modeling"))


def _register_config() -> None:
    auto: Any = sys.modules.get(_CONFIG_AUTO)
    if hasattr(auto, "AutoConfig"):
        config = getattr(import_module(_CONFIG), "VanillaTransformerConfig", None)
        if config is not None:  # else it is being imported, and this runs again when that is done
            auto.AutoConfig.register(config.model_type, config, exist_ok=True)


def _register_models() -> None:
    auto: Any = sys.modules.get(_MODEL_AUTO)
    if hasattr(auto, "AutoModelForSeq2SeqLM"):
        modeling = import_module(_MODEL)
        generative = getattr(modeling, "VanillaTransformerForConditionalGeneration", None)
        if generative is not None:
            config = generative.config_class
            auto.AutoModel.register(config, modeling.VanillaTransformerModel, exist_ok=True)
            auto.AutoModelForSeq2SeqLM.register(config, generative, exist_ok=True)


class _AfterImport(MetaPathFinder):
    """Calls a function after the first import of a module."""

    def __init__(self, actions: dict[str, Callable[[], None]]):
        self.actions = actions

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        action = self.actions.pop(fullname, None)
        if action is None:
            return None
        spec = find_spec(fullname)  # by the other finders, since the action is gone from here
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            action()

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Registers now what is imported already, and the rest when it is."""
    actions = {_CONFIG_AUTO: _register_config, _CONFIG: _register_config}
    actions |= {_MODEL_AUTO: _register_models, _MODEL: _register_models}
    sys.meta_path.insert(0, _AfterImport({name: act for name, act in actions.items() if name not in sys.modules}))
    _register_config()
    _register_models()
