"""Register the model with transformers' Auto classes, and the translation pipeline, when they are first used.

Registering directly would import the Auto classes, the model and therefore torch, which takes more than two seconds:
too slow for `import hf_vanilla_transformer` and `vanilla-transformer --help`. Instead, an import hook registers as
soon as the modules of transformers and of this package are imported, in either order.
"""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_AUTO_CONFIG, _AUTO_MODEL = (f"transformers.models.auto.{name}_auto" for name in ("configuration", "modeling"))
_PIPELINES = "transformers.pipelines"
_CONFIGURATION, _LAYERS, _DECODER, _SEARCH, _GENERATION, _MODELING, _PIPELINE = (
    f"{__package__}.model.{name}_vanilla_transformer"
    for name in ("configuration", "layers", "incremental_decoder", "fast_search", "generation", "modeling", "pipeline")
)
_MODEL_MODULES = {_CONFIGURATION, _LAYERS, _DECODER, _SEARCH, _GENERATION, _MODELING, _PIPELINE}


def _upload(model: Any, repo_id: str, **kwargs: Any) -> str:
    """Upload a model with this package's model card; replaces `push_to_hub` if the package is installed."""
    from .sharing.hub import push_model

    return push_model(model, repo_id, **kwargs)


def _register() -> None:
    """Register with those modules of transformers that are completely imported."""
    modeling: Any = sys.modules.get(_MODELING)
    if hasattr(modeling, "VanillaTransformerPreTrainedModel"):
        modeling.VanillaTransformerPreTrainedModel.uploader = _upload
    auto_config: Any = sys.modules.get(_AUTO_CONFIG)
    if hasattr(auto_config, "AutoConfig"):
        config_class = import_module(_CONFIGURATION).VanillaTransformerConfig
        auto_config.AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    auto_model: Any = sys.modules.get(_AUTO_MODEL)
    if hasattr(auto_model, "AutoModelForSeq2SeqLM"):
        modeling = import_module(_MODELING)
        generative = modeling.VanillaTransformerForConditionalGeneration
        auto_model.AutoModel.register(generative.config_class, modeling.VanillaTransformerModel, exist_ok=True)
        auto_model.AutoModelForSeq2SeqLM.register(generative.config_class, generative, exist_ok=True)
    pipelines: Any = sys.modules.get(_PIPELINES)
    if hasattr(pipelines, "PIPELINE_REGISTRY"):
        translation = import_module(_PIPELINE).TranslationPipeline
        if "translation" not in pipelines.PIPELINE_REGISTRY.supported_tasks:
            # later releases reject the names of removed tasks before checking the registry
            getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
            model = import_module(_AUTO_MODEL).AutoModelForSeq2SeqLM
            registry = pipelines.PIPELINE_REGISTRY
            registry.register_pipeline("translation", translation, pt_model=model, type="text")
            registry.task_aliases = _TaskAliases(registry.task_aliases)


class _TaskAliases(dict[str, str]):
    """Aliases of pipeline tasks, among them "translation_xx_to_yy" for any two languages."""

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or bool(re.fullmatch("translation_[^_]+_to_[^_]+", str(task)))

    def __missing__(self, task: str) -> str:
        return "translation"


class _RegisterAfterImport(MetaPathFinder):
    """Call `_register` after each import of a module in `names`, unless a model module is still being imported."""

    def __init__(self, names: set[str]):
        self.names, self.running = names, set[str]()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        self.names.remove(fullname)
        spec = find_spec(fullname)  # found by the other finders, because the name has been removed here
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            self.running.add(fullname)
            try:
                execute(module)
            finally:
                self.running.remove(fullname)
            if not self.running & _MODEL_MODULES:
                _register()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Register with what is already imported, and with the rest as soon as it is imported."""
    names = {_AUTO_CONFIG, _AUTO_MODEL, _PIPELINES, *_MODEL_MODULES} - sys.modules.keys()
    sys.meta_path.insert(0, _RegisterAfterImport(names))
    _register()
