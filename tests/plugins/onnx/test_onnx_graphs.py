"""Graphs from anyone: which of them are run, and what they may read."""

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402
from transformers.cache_utils import DynamicCache, EncoderDecoderCache  # noqa: E402

from hf_vanilla_transformer.plugins.onnx.onnx_graphs import (  # noqa: E402
    MAX_MEMORY,
    Graph,
    check_graph,
    session_options,
)

TENSOR = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
RESULT = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])


def save(file, nodes, weights=(), outputs=(RESULT,), **parts):
    """Write a graph that computes y from x."""
    graph = helper.make_graph(nodes, "graph", [TENSOR], outputs, weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("elsewhere", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10, **parts), str(file))
    return file


def weight(location: str) -> TensorProto:
    """Return a tensor of two numbers that are in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def add(a: str = "x", b: str = "w"):
    return helper.make_node("Add", [a, b], ["y"])


def loop():
    """Return a loop whose condition is always true."""
    true = helper.make_node("Constant", [], ["more"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True]))
    body = helper.make_graph(
        [true, helper.make_node("Identity", ["v"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2]),
        ],
    )
    return helper.make_node("Loop", ["", "", "x"], ["y"], body=body)


def test_a_graph_runs_with_the_weights_beside_it(tmp_path):
    file = save(tmp_path / "encoder.onnx", [add()], [weight("encoder.onnx.data")])
    (tmp_path / "encoder.onnx.data").write_bytes(torch.tensor([10.0, 20.0]).numpy().tobytes())
    result = Graph(file, session_options())({"x": torch.tensor([1.0, 2.0]), "unused": torch.zeros(1)})
    assert result.tolist() == [11.0, 22.0]


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "other.data", "encoder.onnx"])
@pytest.mark.parametrize("place", ["a weight", "a constant"])
def test_weights_are_read_from_no_other_file(tmp_path, location, place):
    (tmp_path / "secret").write_bytes(bytes(8))
    (tmp_path / "export").mkdir()
    tensor = weight(location)
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    nodes, weights = ([add()], [tensor]) if place == "a weight" else ([constant, add()], [])
    file = save(tmp_path / "export" / "encoder.onnx", nodes, weights)
    with pytest.raises(ValueError, match=r"another file than encoder.onnx.data"):
        Graph(file, session_options())


def test_a_graph_that_may_never_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the operator Loop, which runs a graph inside the graph"):
        check_graph(save(tmp_path / "decode.onnx", [loop()]))


def test_operators_beyond_the_standard_are_refused(tmp_path):
    node = helper.make_node("Run", ["x"], ["y"], domain="elsewhere")
    with pytest.raises(ValueError, match=r"the operator elsewhere\.Run"):
        check_graph(save(tmp_path / "decode.onnx", [node]))
    function = helper.make_function(
        "elsewhere", "Run", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    with pytest.raises(ValueError, match="operators of its own"):
        check_graph(save(tmp_path / "decode.onnx", [node], functions=[function]))


def constant(name: str, value: float | list[int], kind: int = TensorProto.INT64) -> TensorProto:
    return helper.make_tensor(name, kind, [len(value)] if isinstance(value, list) else [], np.ravel(value))


LARGE = 1 + MAX_MEMORY // 4  # numbers
ENLARGED = {
    "Expand": ([helper.make_node("Expand", ["x", "size"], ["large"])], [constant("size", [LARGE, 2])]),
    "Range": (
        [helper.make_node("Range", ["zero", "end", "one"], ["large"])],
        [constant(name, value, TensorProto.FLOAT) for name, value in (("zero", 0), ("end", LARGE), ("one", 1))],
    ),
    # of a size that is not known before it runs
    "ConstantOfShape": (
        [
            helper.make_node("Cast", ["x"], ["size"], to=TensorProto.INT64),
            helper.make_node("ConstantOfShape", ["size"], ["large"]),
        ],
        [],
    ),
}


@pytest.mark.parametrize("kind", ENLARGED)
def test_a_graph_gets_no_more_memory_than_the_limit(tmp_path, kind):
    nodes, constants = ENLARGED[kind]
    nodes = [*nodes, helper.make_node("ReduceMax", ["large"], ["most"], keepdims=0), add("x", "most")]
    graph = Graph(save(tmp_path / "decode.onnx", nodes, constants), session_options())
    with pytest.raises(ValueError, match=r"decode\.onnx cannot be run: .* memory of [0-9]+ is smaller than requested"):
        graph({"x": torch.tensor([LARGE, 2.0])})


def test_an_input_that_no_translation_has_is_refused_by_name(tmp_path):
    graph = Graph(save(tmp_path / "encoder.onnx", [add("x", "x")]), session_options())
    with pytest.raises(ValueError, match="has the input x, which is not part of a translation"):
        graph({"input_ids": torch.zeros(2)})


def test_a_graph_does_not_choose_how_many_layers_the_cache_has(tmp_path):
    name = "cache.self_attention_cache.layers.999999999.keys"
    nodes = [add("x", "x"), helper.make_node("Identity", ["x"], [name])]
    outputs = [RESULT, helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])]
    file = save(tmp_path / "prefill.onnx", nodes, outputs=outputs)
    with pytest.raises(ValueError, match="keys and values of 1,000,000,000 layers"):
        Graph(file, session_options())


def test_what_cannot_be_run_is_a_one_line_error(tmp_path):
    missing = helper.make_node("Reshape", ["x", "w"], ["y"])
    shape = helper.make_tensor("w", TensorProto.INT64, [1], [3])
    graph = Graph(save(tmp_path / "encoder.onnx", [missing], [shape]), session_options())
    with pytest.raises(ValueError, match=r"^encoder\.onnx cannot be run: [^\n]+$"):
        graph({"x": torch.zeros(2)})


@pytest.mark.parametrize("name", ["encoder.onnx", "encoder.onnx.data"])
def test_a_graph_and_its_weights_are_no_links_to_files_elsewhere(tmp_path, name):
    (tmp_path / "export").mkdir()
    file = save(tmp_path / "export" / "encoder.onnx", [add()], [weight("encoder.onnx.data")])
    (tmp_path / "export" / "encoder.onnx.data").write_bytes(torch.ones(2).numpy().tobytes())
    (tmp_path / "export" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "export" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"names '{name}', which is outside the folder"):
        Graph(file, session_options())


@pytest.mark.parametrize(
    "name", ["cache.self_attention_cache.layers.0.keys", "cache.cross_attention_cache.layers.7.keys"]
)
def test_a_graph_reads_only_what_is_in_the_cache(tmp_path, name):
    given = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    graph = helper.make_graph([add("x", name)], "graph", [TENSOR, given], [RESULT])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(tmp_path / "decode.onnx"))
    decode = Graph(tmp_path / "decode.onnx", session_options())
    with pytest.raises(ValueError, match=f"has the input {name}, which is not part of a translation"):
        decode({"x": torch.zeros(2)}, EncoderDecoderCache(DynamicCache(), DynamicCache()))


def test_keys_and_values_have_the_shape_of_a_cache(tmp_path):
    name = "cache.self_attention_cache.layers.0.keys"
    nodes = [add("x", "x"), helper.make_node("Identity", ["x"], [name])]
    outputs = [RESULT, helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])]
    prefill = Graph(save(tmp_path / "prefill.onnx", nodes, outputs=outputs), session_options())
    with pytest.raises(ValueError, match=r"returns keys and values of the shape \(2,\)"):
        prefill({"x": torch.zeros(2)}, EncoderDecoderCache(DynamicCache(), DynamicCache()))
