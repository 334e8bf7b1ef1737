"""Noisy networks (Fortunato et al. 2018): noise on the parameters explores, and how much of it is learned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from async_dqn.nn.networks import Network, Parameters

_SIGMA = 0.5  # sigma_0: the noise at the start, times the square root of a layer's inputs


def with_noise(network: Network) -> Network:
    """The same network with factorised Gaussian noise on all its linear layers (equations 10 and 11).

    Every weight w becomes w + sigma_w * f(e_i) f(e_j), every bias b becomes b + sigma_b * f(e_j), where e has one
    normal number for each input i and output j of the layer, and f(x) = sgn(x) sqrt(|x|).

    Returns:
      A network with the parameters LAYER/w_sigma and LAYER/b_sigma beside those that there were. Its `apply` draws the
      noise, one for all observations, by `seed`; without one there is none.
    """
    layers = {  # name -> (inputs, outputs)
        name.removesuffix("/w"): shape
        for name, shape in network.shapes.items()
        if name.endswith("/w") and len(shape) == 2
    }
    sigmas: dict[str, tuple[int, ...]] = {f"{layer}/w_sigma": shape for layer, shape in layers.items()}
    sigmas |= {f"{layer}/b_sigma": shape[1:] for layer, shape in layers.items()}

    def init(rng: np.random.Generator) -> dict[str, np.ndarray]:
        constants = {layer: _SIGMA / np.sqrt(inputs) for layer, (inputs, _) in layers.items()}
        initial = {
            name: np.full(shape, constants[name.rpartition("/")[0]], np.float32) for name, shape in sigmas.items()
        }
        return network.init(rng) | initial

    def apply(params: Parameters, observation: tf.Tensor, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        means = {name: params[name] for name in network.shapes}
        return network.apply(means if seed is None else {**means, **perturbed(params, seed)}, observation)

    def perturbed(params: Parameters, seed: tf.Tensor) -> Mapping[str, tf.Tensor]:
        sizes = [size for shape in layers.values() for size in shape]
        normal = tf.random.stateless_normal([sum(sizes)], seed)
        factors = iter(tf.split(tf.sign(normal) * tf.sqrt(tf.abs(normal)), sizes))
        found = {}
        for layer in layers:
            of_inputs, of_outputs = next(factors), next(factors)
            noise = of_inputs[:, None] * of_outputs  # [inputs, outputs]
            found[f"{layer}/w"] = params[f"{layer}/w"] + params[f"{layer}/w_sigma"] * noise
            found[f"{layer}/b"] = params[f"{layer}/b"] + params[f"{layer}/b_sigma"] * of_outputs
        return found

    return Network(network.shapes | sigmas, init, apply)
