"""The runtime ONNX: `onnx_runtime.py` writes its graphs, runs them, and recognises their folders."""
