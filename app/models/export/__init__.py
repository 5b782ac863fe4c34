"""Models as exported programs and as ONNX."""
