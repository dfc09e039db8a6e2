"""Register the model with transformers' Auto classes, and the translation pipeline, when they are first used.

Registering directly would import the Auto classes, the model and therefore torch, which takes more than two seconds:
too slow for `import hf_vanilla_transformer` and `vanilla-transformer --help`. transformers offers no entry point for
plugins. So an import hook registers as soon as the modules of transformers and of this package are imported, in either
order.
"""

import re
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from types import ModuleType

_AUTO_CONFIG = "transformers.models.auto.configuration_auto"
_AUTO_MODEL = "transformers.models.auto.modeling_auto"
_PIPELINES = "transformers.pipelines"
_MODEL = f"{__package__}.model."
_MODELING = f"{_MODEL}modeling_vanilla_transformer"


def _upload(*args, **kwargs) -> str:
    """Upload a model with this package's model card; replaces `push_to_hub` if the package is installed."""
    from .sharing.hub import push_model

    return push_model(*args, **kwargs)


def _imported(module: str, name: str) -> ModuleType | None:
    """Return a module if it has been imported as far as the definition of `name`."""
    imported = sys.modules.get(module)
    return imported if hasattr(imported, name) else None


def _register() -> None:
    """Register with those modules of transformers that are completely imported."""
    # The file of the model travels with saved models and must not import this package, so it is told from here
    if modeling := _imported(_MODELING, "VanillaTransformerPreTrainedModel"):
        modeling.VanillaTransformerPreTrainedModel.uploader = _upload

    # exist_ok throughout, because this runs after each of the imports
    if auto := _imported(_AUTO_CONFIG, "AutoConfig"):
        from .model.configuration_vanilla_transformer import VanillaTransformerConfig

        auto.AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)

    if auto := _imported(_AUTO_MODEL, "AutoModelForSeq2SeqLM"):
        modeling = import_module(_MODELING)
        generative = modeling.VanillaTransformerForConditionalGeneration
        auto.AutoModel.register(generative.config_class, modeling.VanillaTransformerModel, exist_ok=True)
        auto.AutoModelForSeq2SeqLM.register(generative.config_class, generative, exist_ok=True)

    if pipelines := _imported(_PIPELINES, "PIPELINE_REGISTRY"):
        # Before the check, because this import may end in another call of this function
        from .model.pipeline_vanilla_transformer import TranslationPipeline

        registry = pipelines.PIPELINE_REGISTRY
        if "translation" not in registry.supported_tasks:
            # Later releases reject the names of removed tasks before checking the registry
            getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
            model = import_module(_AUTO_MODEL).AutoModelForSeq2SeqLM
            registry.register_pipeline("translation", TranslationPipeline, pt_model=model, type="text")
            # The registry looks up aliases first, and "translation_xx_to_yy" is one of the removed names
            registry.task_aliases = _TaskAliases(registry.task_aliases)


class _TaskAliases(dict[str, str]):
    """Aliases of pipeline tasks, among them "translation_xx_to_yy" for any two languages."""

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or bool(re.fullmatch("translation_[^_]+_to_[^_]+", str(task)))

    def __missing__(self, task: str) -> str:
        return "translation"


class _RegisterAfterImport(MetaPathFinder):
    """Call `_register` after each import of a module concerned, unless a model module is still being imported."""

    def __init__(self) -> None:
        # Model modules that are being imported, one by the other. Registering meanwhile would import a module that
        # waits for the one that asked for it, and find it without its classes.
        self.running: set[str] = set()

    def find_spec(self, fullname, path, target=None):
        of_model = fullname.startswith(_MODEL)
        if not of_model and fullname not in (_AUTO_CONFIG, _AUTO_MODEL, _PIPELINES):
            return None
        # Not `importlib.util.find_spec`, which would ask this finder again
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            if of_model:
                self.running.add(fullname)
            try:
                execute(module)
            finally:  # a failed import may be tried again
                self.running.discard(fullname)
            if not self.running:
                _register()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Register with what is already imported, and with the rest as soon as it is imported."""
    # First, because the first finder that knows a module wins
    sys.meta_path.insert(0, _RegisterAfterImport())
    _register()
