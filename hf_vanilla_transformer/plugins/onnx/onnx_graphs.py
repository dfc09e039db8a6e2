"""Run the graphs of an ONNX export, of which nothing but their inputs, outputs and operators is believed.

An export may come from anyone. transformers also writes `export.json`, a description of the Python objects that go in
and come out; whoever reads it with transformers imports and calls what it names. Here the names of the inputs and
outputs of a graph say as much, for example "cache.self_attention_cache.layers.0.keys".
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache

from ...errors import UserError
from ...files import import_extra, inside

MAX_MEMORY = 1 << 33  # bytes of the tensors of all graphs together: a few numbers can make one as large as they like
_STANDARD_DOMAINS = ("", "ai.onnx")
# Part of the cache. transformers prefixes the name of an input that a graph also returns, and that of its counterpart
# among the outputs; its older releases call the cache by another name
_CACHED = re.compile(
    r"(?:input\.|output\.)?(?:cache|past_key_values)\.(self|cross)_attention_cache\.layers\.(\d+)\.(keys|values)"
)


class _Place(NamedTuple):
    """Where a tensor (B, h, S, d) is in the cache."""

    attention: str
    layer: int
    part: str


def _place(name: str) -> _Place | None:
    """Return where the tensor called `name` in a graph is in the cache, or None if it is not part of it."""
    match = _CACHED.fullmatch(name)
    return _Place(match[1], int(match[2]), match[3]) if match else None


class Graph:
    """A graph in a file, which ONNX Runtime runs on the CPU.

    Args:
        file: ends in ".onnx"; its weights are in the file of that name with ".data" added, or in the graph itself.
        options: from `session_options`.

    Raises:
        ImportError: if ONNX or ONNX Runtime is not installed.
        OSError: if there is no such file.
        ValueError: as `check_graph`.
    """

    def __init__(self, file: Path, options: Any):
        for part in (file.name, f"{file.name}.data"):
            inside(file.parent, part)
        check_graph(file)
        self._session = _open(file, options)
        self._name = file.name
        self._inputs = {value.name: _place(value.name) for value in self._session.get_inputs()}
        # a decoder step also returns the keys and values of the source, which it was given
        given = {place for place in self._inputs.values() if place and place.attention == "cross"}
        first, *others = (value.name for value in self._session.get_outputs())
        self._result = first
        self._cached = {name: place for name in others if (place := _place(name)) and place not in given}
        if unknown := [place for place in self._cached.values() if place.layer >= len(self._cached)]:
            raise UserError(f"{file.name} returns the keys and values of {unknown[0].layer + 1:,} layers")

    def __call__(self, tensors: Mapping[str, torch.Tensor], cache: EncoderDecoderCache | None = None) -> torch.Tensor:
        """Return the first output; read the keys and values of earlier positions from `cache`, and update them.

        Args:
            tensors: the other inputs by name. Tracing has removed from a graph those that it found unused.

        Raises:
            ValueError: if the graph has an input that is not given, cannot be run, or returns something else.
        """
        inputs = {}
        for name, place in self._inputs.items():
            tensor = _cached(cache, place) if place and cache is not None else tensors.get(name)
            if tensor is None:
                raise UserError(f"A graph of this export has the input {name}, which is not part of a translation.")
            inputs[name] = tensor.contiguous().numpy()

        names = [self._result, *(self._cached if cache is not None else ())]
        try:
            result, *others = map(torch.from_numpy, self._session.run(names, inputs))
        # of ONNX Runtime, whose classes have no common base
        except Exception as error:
            raise UserError(f"{self._name} cannot be run: {' '.join(str(error).split())[:500]}") from error
        if cache is not None:
            for place, tensor in zip(self._cached.values(), others, strict=True):
                if tensor.dim() != 4 or len(tensor) != len(result):
                    raise UserError(f"{self._name} returns keys and values of the shape {tuple(tensor.shape)}")
                _replace(cache, place, tensor)
        return result


def _layers(cache: EncoderDecoderCache, attention: str) -> Cache:
    return cache.self_attention_cache if attention == "self" else cache.cross_attention_cache


def _cached(cache: EncoderDecoderCache, place: _Place) -> torch.Tensor | None:
    """Return a tensor of the cache, or None if it does not have it."""
    layers = _layers(cache, place.attention).layers
    return getattr(layers[place.layer], place.part) if place.layer < len(layers) else None


def _replace(cache: EncoderDecoderCache, place: _Place, tensor: torch.Tensor) -> None:
    """Put a tensor that a graph returned in the place of the one in the cache, which in the first step has none."""
    own = _layers(cache, place.attention)
    layers: list[Any] = own.layers
    if place.layer >= len(layers) or not layers[place.layer].is_initialized:
        own.update(tensor[:, :, :0], tensor[:, :, :0], place.layer)
    setattr(layers[place.layer], place.part, tensor)


def session_options() -> Any:
    """Return the `onnxruntime.SessionOptions` with which the graphs of this process stay within `MAX_MEMORY`.

    Raises:
        ImportError: if ONNX Runtime is not installed.
    """
    runtime = import_extra("onnxruntime", "export")
    _bound_memory(runtime)
    options = runtime.SessionOptions()
    # by default it would use every core of the machine
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.use_env_allocators", "1")
    # it would compute what depends on no input when a graph is opened, without that limit
    options.add_session_config_entry("optimization.disable_specified_optimizers", "ConstantFolding")
    return options


@cache
def _bound_memory(runtime: ModuleType) -> None:
    """Set the limit on the memory of graphs, which can be done once in a process."""
    place = runtime.OrtMemoryInfo("Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT)
    # with the defaults for how it grows
    runtime.create_and_register_allocator(place, runtime.OrtArenaCfg(MAX_MEMORY, -1, -1, -1))


def _open(file: Path, options: Any) -> Any:
    """Return the session of a graph, which does not depend on its files any more."""
    runtime = import_extra("onnxruntime", "export")
    # ONNX Runtime maps the weights into memory, so that who replaces or truncates them changes or ends this process
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copy:
        for part in (file, Path(f"{file}.data")):
            if part.is_file():
                shutil.copyfile(part, Path(copy, part.name))
        # the system keeps a mapped file, even without a name
        return runtime.InferenceSession(str(Path(copy, file.name)), options, providers=["CPUExecutionProvider"])


def check_graph(file: Path) -> None:
    """Check a graph before ONNX Runtime opens it; its weights are not read.

    Raises:
        ImportError: if ONNX is not installed.
        OSError: if there is no such file.
        ValueError: as `Graph` does.
    """
    onnx = import_extra("onnx", "export")
    model = onnx.load(str(file), load_external_data=False)
    if model.functions:
        raise UserError(f"{file.name} defines operators of its own, which are never run")
    for node in model.graph.node:
        if node.domain not in _STANDARD_DOMAINS:
            raise UserError(f"{file.name} has the operator {node.domain}.{node.op_type}, which is not of the standard")
        # Loop, Scan and If, of which the first may never end
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise UserError(f"{file.name} has the operator {node.op_type}, which runs a graph inside the graph")
    for tensor in _tensors(model.graph):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value != f"{file.name}.data":
                raise UserError(f"{file.name} reads its weights from another file than {file.name}.data")


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield the constants of a graph, each of which may be in another file."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
