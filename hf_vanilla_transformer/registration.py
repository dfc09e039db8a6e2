"""Register the model with transformers' Auto classes, and translation as a pipeline, when they are first used.

Plain registration would import the Auto classes and the model, and with them torch: over two seconds, which neither
`import hf_vanilla_transformer` nor `vanilla-transformer --help` should take. An import hook registers instead as soon
as transformers' modules and this package's are both imported, whichever comes last.
"""

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_CONFIG_AUTO, _MODEL_AUTO = (f"transformers.models.auto.{name}_auto" for name in ("configuration", "modeling"))
_PIPELINES = "transformers.pipelines"
_CONFIGURATION, _LAYERS, _SEARCH, _GENERATION, _MODELING, _PIPELINE = (
    f"{__package__}.model.{name}_vanilla_transformer"
    for name in ("configuration", "layers", "fast_search", "generation", "modeling", "pipeline")
)
_OURS = {_CONFIGURATION, _LAYERS, _SEARCH, _GENERATION, _MODELING, _PIPELINE}


def _upload(model: Any, repo_id: str, **kwargs: Any) -> str:
    """Upload a model with this package's card: what `push_to_hub` does where the package is installed."""
    from .sharing.hub import push_model

    return push_model(model, repo_id, **kwargs)


def _register() -> None:
    """Register with those of transformers' modules that are fully imported."""
    ours: Any = sys.modules.get(_MODELING)
    if hasattr(ours, "VanillaTransformerPreTrainedModel"):
        ours.VanillaTransformerPreTrainedModel.uploader = _upload
    config_auto: Any = sys.modules.get(_CONFIG_AUTO)
    if hasattr(config_auto, "AutoConfig"):
        config = import_module(_CONFIGURATION).VanillaTransformerConfig
        config_auto.AutoConfig.register(config.model_type, config, exist_ok=True)
    auto: Any = sys.modules.get(_MODEL_AUTO)
    if hasattr(auto, "AutoModelForSeq2SeqLM"):
        modeling = import_module(_MODELING)
        generative = modeling.VanillaTransformerForConditionalGeneration
        auto.AutoModel.register(generative.config_class, modeling.VanillaTransformerModel, exist_ok=True)
        auto.AutoModelForSeq2SeqLM.register(generative.config_class, generative, exist_ok=True)
    pipelines: Any = sys.modules.get(_PIPELINES)
    if hasattr(pipelines, "PIPELINE_REGISTRY"):
        translation = import_module(_PIPELINE).TranslationPipeline
        if "translation" not in pipelines.PIPELINE_REGISTRY.supported_tasks:
            # later releases refuse the names of removed tasks before they look up what is registered
            getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
            model = import_module(_MODEL_AUTO).AutoModelForSeq2SeqLM
            pipelines.PIPELINE_REGISTRY.register_pipeline("translation", translation, pt_model=model, type="text")


class _AfterImport(MetaPathFinder):
    """Register after each first import of a relevant module, unless one of this package is still being imported."""

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
    """Register what is already imported, and the rest as soon as it is imported."""
    sys.meta_path.insert(0, _AfterImport({_CONFIG_AUTO, _MODEL_AUTO, _PIPELINES, *_OURS} - sys.modules.keys()))
    _register()
