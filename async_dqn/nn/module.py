"""A network that the store holds: its layout, its start, and how it is optimized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from async_dqn.base.schedules import Schedule
from async_dqn.nn.layout import Layout
from async_dqn.nn.optimizers import Optimizer


class Module(NamedTuple):
    """One named network.

    Attributes:
      name: "q", "policy_value", ...: what store, metrics and checkpoints know it by.
      layout: where its arrays lie in the flat vector [P].
      init: generator -> {array name: float32 array}.
      optimizer: the update rule that gradients step it with.
      rate: step size over global agent steps.
      has_target: whether the store keeps a target copy.
      is_trained: whether its gradients are those of the loss; else they are observed, and count to no norm.
    """

    name: str
    layout: Layout
    init: Callable[[np.random.Generator], dict[str, np.ndarray]]
    optimizer: Optimizer
    rate: Schedule
    has_target: bool
    is_trained: bool = True

    @property
    def size(self) -> int:
        """P, the length of its flat vector."""
        return self.layout.num_parameters


def initial_parameters(modules: Sequence[Module], seed: int) -> dict[str, np.ndarray]:
    """The start [P] of every module, from the seed alone; of the first one as if it were the only one."""
    rng = np.random.default_rng(seed)
    return {module.name: module.layout.flatten(module.init(rng)) for module in modules}
