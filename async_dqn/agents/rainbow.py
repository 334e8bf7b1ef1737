"""Rainbow (Hessel et al. 2018): C51 with all that helps it. Each part can be switched off by its flag."""

from async_dqn.agents.c51 import C51

_PARTS = {
    "double": True,
    "dueling": True,
    "noisy": True,
    "prioritized": True,
    "priority_exponent": 0.5,
    "n_step": 3,
}


class Rainbow(C51):
    """C51 with double Q-learning, dueling streams, noise, prioritized replay and n-step returns."""

    summary = "C51 with double Q-learning, dueling, noise, priorities and n-step returns (Hessel et al. 2018)"
    presets = {
        "paper": {
            **C51.presets["paper"],
            **_PARTS,
            "warmup_steps": 20_000,
            "target_period": 2_000,  # 32,000 frames: 8,000 agent steps, each fourth of which calls for a minibatch
            "learning_rate": 6.25e-5,
            "optimizer_epsilon": 1.5e-4,
        },
        "atari-fast": {**C51.presets["atari-fast"], **_PARTS},
        "pong-fast": {**C51.presets["pong-fast"], **_PARTS, "n_step": 10},
        # Noise explores for longer than a falling epsilon.
        "cartpole": {**C51.presets["cartpole"], **_PARTS, "total_steps": 60_000},
        "vectors": {**C51.presets["vectors"], **_PARTS, "total_steps": 60_000},
        "pictures": {**C51.presets["pictures"], **_PARTS},
        "lunarlander": {**C51.presets["lunarlander"], **_PARTS},
    }
