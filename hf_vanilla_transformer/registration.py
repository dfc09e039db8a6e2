"""Registers the model with transformers' Auto classes, and translation as a pipeline, as soon as somebody uses them.

Those take seconds to import, and so does the model. `vanilla-transformer --help` needs neither, so registration
follows whichever of the two is imported last.
"""

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_CONFIG_AUTO, _MODEL_AUTO = (f"transformers.models.auto.{name}_auto" for name in ("configuration", "modeling"))
_PIPELINES = "transformers.pipelines"
_OURS = {
    f"{__package__}.{name}_vanilla_transformer"
    for name in ("configuration", "layers", "decoding", "generation", "modeling", "pipeline")
}


def _register() -> None:
    """Registers with those of transformers' modules that are there in full."""
    config_auto: Any = sys.modules.get(_CONFIG_AUTO)
    if hasattr(config_auto, "AutoConfig"):
        config = import_module(f"{__package__}.configuration_vanilla_transformer").VanillaTransformerConfig
        config_auto.AutoConfig.register(config.model_type, config, exist_ok=True)
    auto: Any = sys.modules.get(_MODEL_AUTO)
    if hasattr(auto, "AutoModelForSeq2SeqLM"):
        modeling = import_module(f"{__package__}.modeling_vanilla_transformer")
        generative = modeling.VanillaTransformerForConditionalGeneration
        auto.AutoModel.register(generative.config_class, modeling.VanillaTransformerModel, exist_ok=True)
        auto.AutoModelForSeq2SeqLM.register(generative.config_class, generative, exist_ok=True)
    pipelines: Any = sys.modules.get(_PIPELINES)
    if hasattr(pipelines, "PIPELINE_REGISTRY"):
        translation = import_module(f"{__package__}.pipeline_vanilla_transformer").TranslationPipeline
        if "translation" not in pipelines.PIPELINE_REGISTRY.supported_tasks:
            # later releases refuse the names of removed tasks before they look at what is registered
            getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
            model = import_module(_MODEL_AUTO).AutoModelForSeq2SeqLM
            pipelines.PIPELINE_REGISTRY.register_pipeline("translation", translation, pt_model=model, type="text")


class _AfterImport(MetaPathFinder):
    """Registers after each first import of a module that matters, unless one of ours is still under way around it."""

    def __init__(self, names: set[str]):
        self.names, self.running = names, set[str]()

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname not in self.names:
            return None
        self.names.remove(fullname)
        spec = find_spec(fullname)  # by the other finders, since the name is gone from here
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            self.running.add(fullname)
            try:
                execute(module)
            finally:
                self.running.remove(fullname)
            if not self.running & _OURS:
                _register()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Registers now what is imported already, and the rest when it is."""
    sys.meta_path.insert(0, _AfterImport({_CONFIG_AUTO, _MODEL_AUTO, _PIPELINES, *_OURS} - sys.modules.keys()))
    _register()
