"""Asynchronous deep Q-learning on TensorFlow parameter servers."""

__version__ = "0.1.0"
