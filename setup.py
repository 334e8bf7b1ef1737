"""Package metadata; tool settings live in pyproject.toml, exact versions in requirements.lock."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSION = re.findall(r'^__version__ = "(.+)"$', (ROOT / "async_dqn/__init__.py").read_text("utf-8"), re.M)[0]
README = ROOT / "README.md"

setup(
    name="async-dqn",
    version=VERSION,
    description="Deep reinforcement learning on TensorFlow parameter servers: asynchronous DQN, PPO",
    long_description=README.read_text("utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="the async-dqn authors",
    license="MIT",
    packages=find_packages(include=["async_dqn", "async_dqn.*"]),
    package_data={"async_dqn": ["tools/pretrained/*/*.json", "tools/pretrained/*/checkpoints/*"]},
    python_requires=">=3.10",
    install_requires=[
        "absl-py>=2.0",
        "ale-py>=0.12.1",  # the first whose vector environment resets single environments right
        "gymnasium>=1.1",
        "imageio>=2.31",
        "imageio-ffmpeg>=0.5",  # carries its own ffmpeg, for mp4 videos
        "matplotlib>=3.9",
        "numpy>=1.26",
        "packaging>=22",
        "pillow>=10.0",
        "psutil>=5.9",
        "pygame>=2.5",  # gymnasium draws CartPole and its like with it
        "tensorboard>=2.18",  # tf.summary needs it, and TensorFlow 2.21 no longer brings it along
        "tensorflow>=2.18",
    ],
    extras_require={
        "gpu": ["tensorflow[and-cuda]>=2.18"],
        "box2d": ["gymnasium[box2d]>=1.1"],
        "dev": ["hypothesis", "mypy", "pytest", "pytest-timeout", "pytest-xdist", "ruff", "setuptools>=77"],
    },
    entry_points={"console_scripts": ["async-dqn=async_dqn.__main__:run"]},
)
