"""One version of a model: its view, the dense program, and the inputs that rows become."""
