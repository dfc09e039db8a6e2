"""Fixtures that serve models over real connections."""

import contextlib
from functools import partial

import pytest
from live_server import live, request
from search_models import with_varied_lengths

from hf_vanilla_transformer import Translator, translate
from hf_vanilla_transformer.plugins.serving.batcher import Batcher
from hf_vanilla_transformer.plugins.serving.monitoring import Metrics
from hf_vanilla_transformer.plugins.serving.server import Server
from hf_vanilla_transformer.plugins.serving.service import ServedModel, TranslationService


@pytest.fixture(scope="session")
def decoding():
    """How the served models search."""
    return {"num_beams": 3, "max_new_tokens": 20}


@pytest.fixture
def model(save_model):
    return with_varied_lengths(save_model(source_lang="en", target_lang="de")[0])


@pytest.fixture
def serve(model, phrase_tokenizer, decoding):
    """A function that serves models by their names, by default one; returns a function to send requests."""
    with contextlib.ExitStack() as stack:

        def start(
            models=None,
            batcher=None,
            tokenizer=phrase_tokenizer,
            max_connections=100,
            root_path="",
            placeholders=None,
            glossaries=None,
            **settings,
        ):
            names = ("cors_origins", "page", "allowed_hosts")
            shown = {name: settings.pop(name) for name in names if name in settings}
            # files are read in processes of low priority, which take long on a busy machine
            settings.setdefault("timeout", 300)
            batcher = batcher or Batcher(max_delay=0)
            metrics = Metrics()
            stack.callback(batcher.close)
            metrics.queue.set_function(batcher.queue_length)
            models = models or {"model": model}
            served = [
                ServedModel(Translator(each, tokenizer, name), decoding, metrics) for name, each in models.items()
            ]
            service = TranslationService(served, batcher, placeholders)
            service.glossaries = glossaries or {}
            server = Server(service, metrics, **settings)
            connections = {"max_connections": max_connections, "root_path": root_path}
            port = stack.enter_context(live(server.app(**shown), server.timeout, **connections))
            send = partial(request, port)
            send.port = port
            return send

        yield start


@pytest.fixture
def alone(model, phrase_tokenizer, decoding):
    """A function that translates a sentence in a batch of its own."""
    return lambda sentence: translate(model, phrase_tokenizer, [sentence], **decoding)[0]
