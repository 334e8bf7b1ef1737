"""Quiet TensorFlow on the CPU, in this process and in those that tests start; set before it is imported."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
