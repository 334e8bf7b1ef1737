"""Every setting of a run: one frozen, validated dataclass, from which the flags and config.json are made."""

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from async_dqn.base.errors import UserError

AGENTS = ("dqn",)
PROTOCOLS = ("classic", "machado")
NETWORKS = ("auto", "nature", "nips", "mlp")
EXPLORATIONS = ("shared", "ape_x")
DTYPES = ("float32", "bfloat16")
OPTIMIZERS = ("adam", "rmsprop", "centered_rmsprop")
AVERAGES = ("auto", "own", "shared")


def _setting(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    metadata = {"help": help, "choices": tuple(choices), "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of one run. Steps are agent steps; periods in minibatches count those of all workers together.

    Raises:
      UserError: at construction, naming the setting, the value and what is allowed.
    """

    # What is learned, and how long.
    env: str = _setting("pong", "pong, breakout, ..., ALE/Pong-v5, or any gymnasium id with discrete actions.")
    agent: str = _setting("dqn", "The algorithm.", choices=AGENTS)
    protocol: str = _setting("classic", "How Atari games are played and scored.", choices=PROTOCOLS)
    total_steps: int = _setting(3_000_000, "Agent steps of all workers together.", minimum=1, maximum=10**12)
    stop_at_return: float = _setting(
        float("inf"), "End when the mean return of the last 100 games reaches this; inf: never."
    )
    seed: int = _setting(0, "Seed of networks, environments and exploration.", minimum=0, maximum=2**31 - 1)
    envs_per_worker: int = _setting(8, "Environments that a worker steps together.", minimum=1, maximum=1024)

    # The agent.
    network: str = _setting("auto", "The Q-network; auto: nips for frames, mlp for vectors.", choices=NETWORKS)
    double: bool = _setting(True, "Double Q-learning.")
    dueling: bool = _setting(False, "Dueling network streams.")
    center_frames: bool = _setting(True, "Take its mean off each stack of frames; false: as in the papers.")
    compute_dtype: str = _setting(
        "float32",
        "What the network computes in; parameters and action values are float32 always. bfloat16 pays only where the "
        "processor is made for it (`bench` tells).",
        choices=DTYPES,
    )
    n_step: int = _setting(3, "Steps of return before bootstrapping.", minimum=1, maximum=100)
    discount: float = _setting(0.99, "Gamma.", minimum=0, maximum=1)
    clip_rewards: bool = _setting(True, "Clip rewards to [-1, 1] for learning; reported returns never are.")
    batch_size: int = _setting(32, "Transitions in a minibatch.", minimum=1, maximum=65536)
    train_period: int = _setting(4, "Agent steps per minibatch.", minimum=1)
    prefetch: bool = _setting(
        False, "Draw minibatches in a thread beside the computation: pays with a GPU, or cores that idle."
    )
    overlap_steps: bool = _setting(
        False, "Step the environments while the learner computes; what a step calls for is learned one step later then."
    )
    target_period: int = _setting(1_000, "Minibatches between two refreshes of the target network.", minimum=1)
    replay_capacity: int = _setting(
        200_000, "Transitions in replay, over all workers; each worker holds its share.", minimum=1
    )
    warmup_steps: int = _setting(10_000, "Agent steps before training, over all workers.", minimum=1)
    exploration: str = _setting(
        "shared",
        "shared: one falling epsilon for all; ape_x: a constant one for each worker, 0.4 ** (1 + 7 i / (N - 1)), "
        "which is 0.4 for one alone and for the baseline.",
        choices=EXPLORATIONS,
    )
    epsilon_start: float = _setting(1.0, "Exploration at the start.", minimum=0, maximum=1)
    epsilon_final: float = _setting(0.01, "Exploration at the end.", minimum=0, maximum=1)
    epsilon_steps: int = _setting(100_000, "Agent steps over which exploration falls, after warm-up.", minimum=1)

    # The optimizer.
    optimizer: str = _setting("adam", "The update rule.", choices=OPTIMIZERS)
    learning_rate: float = _setting(2.5e-4, "Step size at the start.", minimum=0)
    final_learning_rate: float = _setting(
        -1.0, "Step size at --learning_rate_steps and after, reached in a straight line; -1: constant.", minimum=-1
    )
    learning_rate_steps: int = _setting(0, "Agent steps over which the step size falls; 0: --total_steps.", minimum=0)
    optimizer_epsilon: float = _setting(1e-8, "The optimizer's epsilon.", minimum=1e-12)
    rmsprop_decay: float = _setting(0.95, "Decay of RMSProp's averages.", minimum=0, maximum=1)
    max_gradient_norm: float = _setting(0.0, "Scale larger gradients down to this norm; 0: never.", minimum=0)

    # Trips to the parameter servers.
    local_steps: int = _setting(
        0,
        "Minibatches a worker applies to its own copy before it pushes the difference (Downpour); "
        "0: it pushes gradients and the optimizer runs on the parameter servers.",
        minimum=0,
        maximum=10_000,
    )
    averages: str = _setting(
        "auto",
        "How workers' optimizers forget (with --local_steps): own: like a single one; shared: that to the power of "
        "their number, so that all together look back as far as a single one; auto: own up to two workers.",
        choices=AVERAGES,
    )
    push_period: int = _setting(
        1, "Minibatches whose gradients are summed into one push (with --local_steps=0).", minimum=1
    )
    pull_period: int = _setting(1, "Minibatches between two pulls (with --local_steps=0).", minimum=1)
    wire_dtype: str = _setting(
        "float32",
        "What updates and parameters travel in; bfloat16 is half the bytes, and what it rounds off a delta is pushed "
        "with the next one.",
        choices=DTYPES,
    )
    shared_memory: bool = _setting(
        True,
        "Trips that push and pull go through memory shared with the parameter servers of the same host, not through "
        "sockets (Linux; with --wire_dtype=float32).",
    )
    overlap: bool = _setting(
        False,
        "Make trips to the parameter servers in a thread beside the computation: it waits less, and updates are "
        "staler. For slow networks.",
    )
    locked: bool = _setting(False, "Parameter servers lock while they apply a gradient; false: Hogwild.")

    # What is not let through.
    max_staleness: int = _setting(
        0,
        "Drop an update if more than so many came in since its pull, with --overlap its worker's own among them; "
        "0: never.",
        minimum=0,
    )
    max_nonfinite: int = _setting(
        10, "Minibatches in a row with a loss, gradient or update that is not finite, at which the run ends.", minimum=1
    )

    # The cluster and its machines.
    num_ps: int = _setting(1, "Parameter servers (command `local`).", minimum=1, maximum=64)
    num_workers: int = _setting(2, "Workers (command `local`).", minimum=1, maximum=512)
    threads: int = _setting(
        0, "Threads that a worker computes with; 0: the cores shared out over the workers of its host.", minimum=0
    )
    pin: bool = _setting(
        True, "With --threads=0, keep each worker to cores of its own, where its host's can be shared out evenly."
    )
    gpus: str = _setting(
        "auto", "GPUs for workers, e.g. 0,1: worker i takes the i-th in turn; auto: all there are; none."
    )
    gpu_memory_fraction: float = _setting(
        0.0, "Share of a GPU's memory that one worker takes; 0: no fixed share.", minimum=0, maximum=1
    )
    gpu_memory_growth: bool = _setting(True, "Take GPU memory as it is needed (without a fixed share).")
    ps_deadline: float = _setting(
        60.0, "Seconds a parameter server may take to answer, or to come back.", minimum=1, maximum=86_400
    )
    lease: float = _setting(
        30.0, "Seconds without a sign of life after which a worker counts as lost.", minimum=2, maximum=86_400
    )
    start_deadline: float = _setting(
        600.0, "Seconds that a worker may take to come at all.", minimum=1, maximum=86_400 * 30
    )

    # What is written.
    log_period: float = _setting(2.0, "Seconds between two rows of metrics.", minimum=0.1)
    checkpoint_period: float = _setting(120.0, "Seconds between two checkpoints.", minimum=1)
    keep_checkpoints: int = _setting(3, "Newest checkpoints kept.", minimum=1)
    checkpoint_replay: bool = _setting(True, "Keep each worker's replay on disk too, to go on with.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        if self.local_steps and (self.push_period, self.pull_period) != (1, 1):
            raise UserError(
                f"--local_steps={self.local_steps} pushes and pulls every {self.local_steps} minibatches; leave "
                f"--push_period={self.push_period} and --pull_period={self.pull_period} at 1, or set --local_steps=0"
            )
        if not self.local_steps and self.averages != "auto":
            raise UserError(
                f"--averages={self.averages}: with --local_steps=0 one optimizer on the parameter servers serves all "
                "workers; leave it at auto, or set --local_steps"
            )
        if -1 < self.final_learning_rate < 0:
            raise UserError(f"--final_learning_rate={self.final_learning_rate}: must be -1 (constant) or at least 0")
        if self.gpus not in ("auto", "none") and not re.fullmatch(r" *[0-9]{1,6} *(, *[0-9]{1,6} *)*", self.gpus):
            raise UserError(f"--gpus={self.gpus}: must be auto, none, or indices such as 0,1")
        share = self.replay_capacity // self.num_workers // self.envs_per_worker
        if share < self.n_step + 8:
            raise UserError(
                f"--replay_capacity={self.replay_capacity} leaves {share} transitions to each of {self.num_workers} "
                f"workers x {self.envs_per_worker} environments; at least {self.n_step + 8} each are needed"
            )
        if 2 * self.warmup_steps > self.replay_capacity:
            raise UserError(
                f"--warmup_steps={self.warmup_steps}: must be at most half of --replay_capacity={self.replay_capacity}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity as a string."""
        values = dataclasses.asdict(self)
        return {name: str(value) if value == float("inf") else value for name, value in values.items()}

    def shared_id(self) -> int:
        """A number of 62 bits that workers have in common if the settings are the same that they need to share."""
        shared = {name: value for name, value in self.to_dict().items() if name not in _OF_ONE_PROCESS}
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 2 | 1

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """The inverse of `to_dict`; names that this version does not know are left out."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        return cls(**{name: _as_saved(fields[name], value) for name, value in values.items() if name in fields})


# Settings in which one process may differ from another: what concerns its host, or the chief alone.
_OF_ONE_PROCESS = frozenset(
    {
        "checkpoint_period",
        "checkpoint_replay",
        "compute_dtype",
        "envs_per_worker",
        "gpu_memory_fraction",
        "gpu_memory_growth",
        "gpus",
        "keep_checkpoints",
        "lease",
        "log_period",
        "overlap_steps",
        "pin",
        "prefetch",
        "ps_deadline",
        "shared_memory",
        "start_deadline",
        "stop_at_return",
        "threads",
    }
)


def _as_saved(field: dataclasses.Field, value: Any) -> Any:
    """A value from JSON, of the field's own type: no text counts as true, no fraction as a whole number."""
    if field.type is float and (type(value) is int or value == "inf"):
        return float(value)
    if type(value) is not field.type:
        wanted = getattr(field.type, "__name__", field.type)
        raise UserError(f"{field.name} is {value!r}: must be of type {wanted}")
    return value


def _check(field: dataclasses.Field, value: Any) -> None:
    flag, metadata = f"--{field.name}={value}", field.metadata
    if metadata["choices"] and value not in metadata["choices"]:
        close = difflib.get_close_matches(str(value), metadata["choices"], 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"{flag}: {hint}must be one of {', '.join(metadata['choices'])}")
    low, high = metadata["minimum"], metadata["maximum"]
    endless = value == float("inf") and field.default != value
    if value != value or endless or (low is not None and value < low) or (high is not None and value > high):
        bounds = [("at least", low), ("at most", high)]
        allowed = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        raise UserError(f"{flag}: must be a number{f' of {allowed}' if allowed else ', not nan'}")


_ATARI_FAST = {
    "network": "nips",
    "total_steps": 3_000_000,
    "replay_capacity": 200_000,
    "overlap_steps": True,
    "local_steps": 4,
}

PRESETS: dict[str, dict[str, Any]] = {
    # Mnih et al. 2015, extended data table 1; exploration over 1 M frames is 250 k agent steps.
    "nature": {
        "network": "nature",
        "total_steps": 50_000_000,
        "envs_per_worker": 1,
        "double": False,
        "center_frames": False,
        "n_step": 1,
        "target_period": 10_000,
        "replay_capacity": 1_000_000,
        "warmup_steps": 50_000,
        "epsilon_final": 0.1,
        "epsilon_steps": 250_000,
        "optimizer": "centered_rmsprop",
        # 0.01 in the paper, whose gradients are sums over the 32 transitions (what `backward` gives in their
        # NeuralQLearner.lua is not divided). Here they are means, and but for this RMSProp's steps have no scale.
        "optimizer_epsilon": 0.01 / 32**2,
    },
    # The smaller network, n-step double Q-learning, early exploitation: results on CPU cores while one waits.
    "atari-fast": _ATARI_FAST,
    # Pong has long rallies to settle in, which runs with a lower last rate did not come off.
    "pong-fast": _ATARI_FAST
    | {
        "stop_at_return": 18.0,
        "final_learning_rate": 1e-4,
        "learning_rate_steps": 500_000,
    },
    "cartpole": {
        "network": "mlp",
        "total_steps": 30_000,
        "envs_per_worker": 4,
        "clip_rewards": False,
        "batch_size": 64,
        "train_period": 2,
        "target_period": 100,
        "replay_capacity": 30_000,
        "warmup_steps": 500,
        "epsilon_final": 0.02,
        "epsilon_steps": 5_000,
        "learning_rate": 1e-3,
        "log_period": 0.5,
        "local_steps": 1,
    },
}


def make_config(preset: str, overrides: Mapping[str, Any]) -> Config:
    """A preset with single settings replaced. Raises UserError for an unknown preset or a bad value."""
    if preset not in PRESETS:
        close = difflib.get_close_matches(preset, PRESETS, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"--preset={preset}: {hint}must be one of {', '.join(PRESETS)}")
    return Config(**(PRESETS[preset] | dict(overrides)))
