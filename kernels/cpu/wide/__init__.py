"""The wide part of a model: scored and learned one sample after the other."""
