"""The settings that all algorithms share, one dataclass a concern; an agent's own are in its file.

Steps are agent steps; periods in minibatches count those of all workers together.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from async_dqn.base.errors import UserError
from async_dqn.settings.environment import EnvironmentSettings
from async_dqn.settings.fields import Fields, setting

Self = TypeVar("Self", bound="Config")

DTYPES = ("float32", "bfloat16")
OPTIMIZERS = ("adam", "radam", "rmsprop", "centered_rmsprop")
UPDATE_MODES = {  # the first: the store's default, where an algorithm has no other
    "ps": ("async", "sync", "accumulate"),
    "shared_memory": ("hogwild", "locked", "sync"),
}
EVERY_MODE = ("auto", *dict.fromkeys(sum(UPDATE_MODES.values(), ())))
ALONE = {"num_workers": 1, "num_ps": 1, "store": "ps", "update_mode": "auto"}  # of a run in one process
_UNSHARED = ALONE | {
    "replay": "local",
    "parallelism": "gradient",
    "planning": "auto",
    "local_steps": 0,
    "averages": "own",
    "backup_workers": 0,
    "accumulate": 0,
    "wire_dtype": "float32",
    "shared_memory": True,
    "overlap": False,
    "max_staleness": 0,
}


@dataclasses.dataclass(frozen=True)
class TaskSettings(Fields):
    """What is learned, and how long."""

    env: str = setting("pong", "An Atari game such as pong, a gymnasium id such as CartPole-v1, or module:ID.")
    agent: str = setting("dqn", "The algorithm: a name that `async-dqn agents` lists, or package.module:NAME.")
    protocol: str = setting(
        "classic",
        "How Atari games are played and scored. classic: as in Mnih et al. 2015; machado: with sticky actions, as in "
        "Dopamine.",
        choices=("classic", "machado"),
    )
    total_steps: int = setting(3_000_000, "Agent steps of all workers together.", minimum=1)
    stop_at_return: float = setting(
        float("inf"), "End when the mean return of the last 100 games reaches this; inf: never.", shared=False
    )
    seed: int = setting(0, "Seed of networks, environments and exploration.", minimum=0, maximum=2**31 - 1)
    envs_per_worker: int = setting(
        8, "Environments that a worker steps together.", minimum=1, maximum=1024, shared=False
    )
    overlap_steps: bool = setting(
        False,
        "Step the environments while the learner computes (Atari, or with --env_processes); each step is then learned "
        "from one step later.",
        shared=False,
        not_with={"replay": ("global",), "parallelism": ("data",)},
    )
    discount: float = setting(0.99, "How much a reward counts that comes one step later (gamma).", minimum=0, maximum=1)
    max_episode_steps: int = setting(
        0, "Agent steps after which a game is cut off; 0: as the environment has it.", minimum=0
    )
    reward_scale: float = setting(1.0, "Rewards are multiplied by it for learning; reported returns never are.")
    clip_rewards: bool = setting(True, "Clip rewards to [-1, 1] for learning; reported returns never are.")


@dataclasses.dataclass(frozen=True)
class NetworkSettings(Fields):
    """The network."""

    network: str = setting(
        "auto",
        "The network. nature: of Mnih et al. 2015; nips: the smaller one of Mnih et al. 2013; impala: the residual one "
        "of Espeholt et al. 2018; small: for pictures with a side of fewer than 36 pixels; mlp: two hidden layers, for "
        "vectors; auto: mlp, small or nips, whichever fits.",
        choices=("auto", "nature", "nips", "impala", "small", "mlp"),
    )
    center_frames: bool = setting(
        True, "Subtract its mean from each stack of frames and triple the contrast; false: as in the papers."
    )
    normalize_observations: bool = setting(
        False,
        "Subtract the running mean of each number of a vector, or of each channel of a picture, and divide by the "
        "standard deviation.",
    )
    layer_norm: bool = setting(False, "Normalise each hidden layer before its ReLU.")
    compute_dtype: str = setting(
        "auto",
        "What the network computes in; parameters and outputs are float32 always. auto: bfloat16 in the networks nips, "
        "nature and impala where the processor is made for it, float32 elsewhere and on GPUs (recent ones multiply in "
        "TF32).",
        choices=("auto", *DTYPES),
        shared=False,
    )


@dataclasses.dataclass(frozen=True)
class OptimizerSettings(Fields):
    """The optimizer."""

    optimizer: str = setting("adam", "The update rule.", choices=OPTIMIZERS)
    learning_rate: float = setting(2.5e-4, "Step size at the start.", minimum=0)
    final_learning_rate: float = setting(
        -1.0, "Step size at --learning_rate_steps and after, reached in a straight line; -1: constant.", minimum=-1
    )
    learning_rate_steps: int = setting(
        0,
        "Agent steps over which the step size falls; 0: --total_steps.",
        minimum=0,
        not_with={"final_learning_rate": (-1.0,)},
    )
    optimizer_epsilon: float = setting(1e-8, "The optimizer's epsilon.", minimum=1e-12)
    rmsprop_decay: float = setting(
        0.95,
        "Decay of RMSProp's averages.",
        minimum=0,
        maximum=1,
        only_with={"optimizer": ("rmsprop", "centered_rmsprop")},
    )
    max_gradient_norm: float = setting(0.0, "Scale larger gradients down to this norm; 0: never.", minimum=0)

    def check(self) -> None:
        super().check()
        if -1 < self.final_learning_rate < 0:
            raise UserError(f"--final_learning_rate={self.final_learning_rate}: must be -1 (constant) or at least 0")


@dataclasses.dataclass(frozen=True)
class SharingSettings(Fields):
    """How workers share the parameters."""

    default_modes: ClassVar[Mapping[str, str]] = {store: modes[0] for store, modes in UPDATE_MODES.items()}

    store: str = setting(
        "ps",
        "Where the shared parameters are (command `local`): on parameter servers, or in memory that all workers share.",
        choices=tuple(UPDATE_MODES),
    )
    update_mode: str = setting(
        "auto",
        "How the workers' updates come together; auto: sync for paac; for all others async on parameter servers, "
        "hogwild in shared memory, or locked there for a3c.",
        choices=EVERY_MODE,
    )
    backup_workers: int = setting(
        0,
        "With --update_mode=sync: how many of the slowest workers an update does not wait for; their gradients are "
        "dropped.",
        minimum=0,
    )
    accumulate: int = setting(
        0, "With --update_mode=accumulate: how many gradients, of any workers, make one update.", minimum=0
    )
    local_steps: int = setting(
        0,
        "Minibatches a worker applies to its own copy before it pushes the difference (Downpour); "
        "0: it pushes gradients and the optimizer runs on the parameter servers.",
        minimum=0,
        maximum=10_000,
    )
    averages: str = setting(
        "own",
        "With --local_steps, the decay rates of each worker's optimizer. own: as in one process; shared: raised to the "
        "power of the number of workers, so that all averages together cover as many steps of the run. With more than "
        "two workers, presets set shared and --local_steps=1.",
        choices=("own", "shared"),
    )
    wire_dtype: str = setting(
        "float32",
        "What updates and parameters are sent in; bfloat16 is half the bytes, and what it rounds off a delta is pushed "
        "with the next one.",
        choices=DTYPES,
    )
    shared_memory: bool = setting(
        True,
        "Exchange parameters through memory shared with the parameter servers of the same host, not through sockets "
        "(Linux; with --wire_dtype=float32).",
        shared=False,
        only_with={"store": ("ps",)},
    )
    overlap: bool = setting(
        False,
        "Push and pull in a thread beside the computation: a worker waits less, and updates are staler. For slow "
        "networks.",
    )
    max_staleness: int = setting(
        0,
        "Drop an update that is staler than this number of updates (with --overlap the worker's own count too); 0: "
        "never.",
        minimum=0,
    )
    max_nonfinite: int = setting(
        10, "Minibatches in a row with a loss, gradient or update that is not finite, at which the run ends.", minimum=1
    )

    @property
    def mode(self) -> str:
        """The update mode; that of the store where it was left to it."""
        return self.default_modes[self.store] if self.update_mode == "auto" else self.update_mode

    def check(self) -> None:
        super().check()
        if self.mode not in UPDATE_MODES[self.store]:
            allowed = ", ".join(UPDATE_MODES[self.store])
            raise UserError(f"--update_mode={self.update_mode}: with --store={self.store} must be one of {allowed}")
        if self.local_steps and self.mode != "async":  # these take nothing but gradients
            raise UserError(
                f"--local_steps={self.local_steps}: must be 0 with --store={self.store} and --update_mode={self.mode}, "
                "where updates are gradients; leave it out"
            )
        if self.backup_workers and self.mode != "sync":
            raise UserError(f"--backup_workers={self.backup_workers}: is for --update_mode=sync")
        if self.accumulate and self.mode != "accumulate":
            raise UserError(f"--accumulate={self.accumulate}: is for --update_mode=accumulate")
        if not self.accumulate and self.mode == "accumulate":
            raise UserError("--update_mode=accumulate: --accumulate must be at least 1, the gradients of one update")
        if self.mode == "sync" and self.overlap:
            raise UserError("--overlap=True: with --update_mode=sync every worker waits for the update; leave it out")
        if self.mode == "sync" and self.max_staleness:
            raise UserError(
                f"--max_staleness={self.max_staleness}: with --update_mode=sync no update is stale; leave it out"
            )
        if self.store == "shared_memory" and self.wire_dtype != "float32":
            raise UserError(f"--wire_dtype={self.wire_dtype}: nothing is sent with --store=shared_memory; leave it out")
        if self.mode == "hogwild" and self.overlap:
            raise UserError("--overlap=True: with --update_mode=hogwild there are no round trips; leave it out")
        if not self.local_steps and self.averages != "own":
            raise UserError(
                f"--averages={self.averages}: with --local_steps=0 one optimizer on the parameter servers serves all "
                "workers; leave it at own, or set --local_steps"
            )


@dataclasses.dataclass(frozen=True)
class ClusterSettings(Fields):
    """The cluster and its machines."""

    num_ps: int = setting(
        1, "Parameter servers (command `local`); with --store=shared_memory there are none.", minimum=0, maximum=64
    )
    num_workers: int = setting(2, "Workers (command `local`).", minimum=1, maximum=512)
    threads: int = setting(
        0,
        "Threads that a worker computes with; 0: the cores shared out over the workers of its host.",
        minimum=0,
        maximum=1_024,
        shared=False,
    )
    pin: bool = setting(
        True,
        "With --threads=0, keep each worker to cores of its own, where its host's can be shared out evenly.",
        shared=False,
    )
    gpus: str = setting(
        "auto", "GPUs for workers, e.g. 0,1: worker i takes the i-th in turn; auto: all there are; none.", shared=False
    )
    gpu_memory_fraction: float = setting(
        0.0,
        "Share of a GPU's memory that one worker takes; 0: no fixed share.",
        minimum=0,
        maximum=1,
        shared=False,
        not_with={"gpus": ("none",)},
    )
    gpu_memory_growth: bool = setting(True, "Take GPU memory as it is needed (without a fixed share).", shared=False)
    ps_deadline: float = setting(
        60.0,
        "Seconds a parameter server may take to answer, or to come back.",
        minimum=1,
        maximum=86_400,
        shared=False,
    )
    lease: float = setting(
        30.0,
        "Seconds without a sign of life after which a worker counts as lost.",
        minimum=2,
        maximum=86_400,
        shared=False,
    )
    start_deadline: float = setting(
        600.0,
        "Seconds that a worker may take to report for the first time.",
        minimum=1,
        maximum=86_400 * 30,
        shared=False,
    )

    def check(self) -> None:
        super().check()
        if self.gpus not in ("auto", "none") and not re.fullmatch(r" *[0-9]{1,6} *(, *[0-9]{1,6} *)*", self.gpus):
            raise UserError(f"--gpus={self.gpus}: must be auto, none, or indices such as 0,1")


@dataclasses.dataclass(frozen=True)
class OutputSettings(Fields):
    """What is written."""

    log_period: float = setting(2.0, "Seconds between two rows of metrics.", minimum=0.1, shared=False)
    checkpoint_period: float = setting(120.0, "Seconds between two checkpoints.", minimum=1, shared=False)
    keep_checkpoints: int = setting(3, "Newest checkpoints kept.", minimum=1, shared=False)


@dataclasses.dataclass(frozen=True)
class Config(
    OutputSettings,
    ClusterSettings,
    SharingSettings,
    OptimizerSettings,
    NetworkSettings,
    EnvironmentSettings,
    TaskSettings,
):
    """The settings that every run has. An agent's settings extend it with its own."""

    @property
    def separates(self) -> bool:
        """Whether worker 0 only learns, from what all others send, and they only act."""
        return False

    def shared_names(self) -> set[str]:
        """As in `Fields`. Where steps cross between workers, a block of them is of as many environments everywhere."""
        return super().shared_names() | ({"envs_per_worker"} if self.separates or self.has_planners else set())

    @classmethod
    def unshared(cls) -> dict[str, Any]:
        """The settings that say how work is shared, as they are of a run in one process."""
        return {field.name: _UNSHARED[field.name] for field in dataclasses.fields(cls) if field.name in _UNSHARED}

    @property
    def has_planners(self) -> bool:
        """Whether worker 0 alone acts, and all others train a model of the environment and plan with it."""
        return False

    @property
    def has_same_replays(self) -> bool:
        """Whether several workers would all keep the same steps, so that nobody takes over another's replay."""
        return False

    @property
    def num_actors(self) -> int:
        """Workers that act."""
        return 1 if self.has_planners else self.num_workers - int(self.separates)

    @property
    def max_mean_norm(self) -> float:
        """The largest norm of the mean of several gradients; 0: each is clipped by itself, or none is."""
        has_means = self.mode == "accumulate" or (self.mode == "sync" and self.num_workers > 1)
        return self.max_gradient_norm if has_means else 0.0

    @property
    def num_learners(self) -> int:
        """Workers that learn, each from experience of its own."""
        return 1 if self.separates else self.num_workers

    @property
    def num_replays(self) -> int:
        """Replays that all experience is shared out over; each planner has all of it."""
        return 1 if self.has_planners else self.num_learners

    def actor_index(self, worker: int) -> int:
        """Which of the actors a worker is; 0 for one that does not act."""
        return 0 if self.has_planners else max(0, worker - int(self.separates))

    def check(self) -> None:
        super().check()
        if self.store == "shared_memory" and self.num_ps:
            raise UserError(f"--num_ps={self.num_ps}: --store=shared_memory has no parameter servers; leave it out")
        if self.store == "ps" and not self.num_ps:
            raise UserError("--num_ps=0: --store=ps needs at least 1")
        if self.backup_workers >= self.num_workers:
            raise UserError(
                f"--backup_workers={self.backup_workers}: must be less than --num_workers={self.num_workers}, so that "
                "there is one to wait for"
            )

    @classmethod
    def combine(cls: type[Self], base: Mapping[str, Any], given: Mapping[str, Any]) -> Self:
        """Settings that some were given of, and what these decide of the others, which otherwise are those of `base`.

        Raises UserError where what was given does not go together, or means nothing beside the rest. Where all settings
        are given, it is a program that hands them on.
        """
        values = {**base, **given}
        store, mode = values.get("store", cls.store), values.get("update_mode", cls.update_mode)
        decided: dict[str, Any] = {}
        if store == "shared_memory":
            decided = {"num_ps": 0}
        elif not values.get("num_ps", 1):
            decided = {"num_ps": cls.num_ps}
        if mode not in ("auto", *UPDATE_MODES.get(store, ())):  # that of a store that the run was on before
            decided["update_mode"] = mode = "auto"
        if mode == "auto":
            mode = cls.default_modes.get(store, mode)
        if store == "shared_memory" or mode in ("sync", "accumulate"):
            decided |= {"local_steps": 0, "averages": "own"}
        decided |= {"wire_dtype": "float32"} if store == "shared_memory" else {}
        decided |= {"overlap": False} if mode in ("hogwild", "sync") else {}
        decided |= {"max_staleness": 0} if mode == "sync" else {}
        decided |= {} if mode == "sync" else {"backup_workers": 0}
        decided |= {} if mode == "accumulate" else {"accumulate": 0}
        config = cls(**(values | decided | dict(given)))
        if given.keys() < config.to_dict().keys():
            config.refuse_idle(given)
        return config


def refuse_sharing(given: Mapping[str, Any], allowed: Mapping[str, Any], command: str) -> None:
    """Raises UserError where a setting that was given says that work is shared in a way that a command does not."""
    for name, value in given.items():
        if name in allowed and value != allowed[name]:
            raise UserError(f"--{name}={value}: is for the command local, not for {command}")


# Concerns that several agents have in common.


@dataclasses.dataclass(frozen=True)
class QueueSettings(Config):
    """Experience that crosses a queue, from the workers that act to the one that learns."""

    crossing: ClassVar[str] = ""  # the flag that says so

    queue_size: int = setting(
        2,
        "With --replay=global or --parallelism=data, blocks of steps that may wait for the learner; while so many do, "
        "actors wait.",
        minimum=1,
        maximum=10_000,
        only_with={"replay": ("global",), "parallelism": ("data",)},  # of which an agent has one
    )

    def check(self) -> None:
        super().check()
        if self.separates and self.mode == "sync":
            raise UserError(f"--update_mode=sync: with {self.crossing} worker 0 alone has gradients; leave it out")


@dataclasses.dataclass(frozen=True)
class DataParallelSettings(QueueSettings):
    """What workers of an agent that learns from rollouts share."""

    crossing: ClassVar[str] = "--parallelism=data"

    parallelism: str = setting(
        "gradient",
        "gradient: every worker learns from its own rollouts; data: worker 0 learns from the rollouts of all others, "
        "which only act.",
        choices=("gradient", "data"),
    )
    rollouts_per_batch: int = setting(
        1,
        "With --parallelism=data, rollouts that are learned from together.",
        minimum=1,
        maximum=1_024,
        only_with={"parallelism": ("data",)},
    )

    @property
    def separates(self) -> bool:
        return self.parallelism == "data" and self.num_workers > 1


@dataclasses.dataclass(frozen=True)
class ReplaySettings(QueueSettings):
    """Learning from replay."""

    crossing: ClassVar[str] = "--replay=global"

    replay: str = setting(
        "local",
        "local: every worker learns from its own replay; global: worker 0 learns from one replay of what all others "
        "send, and they only act.",
        choices=("local", "global"),
    )
    send_period: int = setting(
        16,
        "With --replay=global, steps of each environment that an actor sends together; it pulls parameters each time.",
        minimum=1,
        maximum=10_000,
        only_with={"replay": ("global",)},
    )

    n_step: int = setting(3, "Steps of return before bootstrapping.", minimum=1, maximum=100)
    batch_size: int = setting(32, "Transitions in a minibatch.", minimum=1, maximum=65536)
    train_period: int = setting(4, "Agent steps per minibatch.", minimum=1)
    replay_capacity: int = setting(
        200_000, "Transitions in replay, over all workers; each worker holds its share.", minimum=1
    )
    warmup_steps: int = setting(10_000, "Agent steps before training, over all workers.", minimum=1)
    checkpoint_replay: bool = setting(
        True, "Keep each worker's replay on disk too, so that --resume has it.", shared=False
    )

    @property
    def separates(self) -> bool:
        return self.replay == "global" and self.num_workers > 1

    def check(self) -> None:
        super().check()
        self.check_capacity(1)
        if 2 * self.warmup_steps > self.replay_capacity:
            raise UserError(
                f"--warmup_steps={self.warmup_steps}: must be at most half of --replay_capacity={self.replay_capacity}"
            )

    def check_capacity(self, stack: int) -> None:
        """Raises UserError where an environment's part of replay is too small for stacks of so many observations."""
        share, needed = self.replay_capacity // self.num_actors // self.envs_per_worker, self.n_step + stack + 7
        if share < needed:
            raise UserError(
                f"--replay_capacity={self.replay_capacity} leaves {share} transitions to each of {self.num_actors} "
                f"workers x {self.envs_per_worker} environments; at least {needed} each are needed"
            )


@dataclasses.dataclass(frozen=True)
class RolloutSettings(Config):
    """Learning from rollouts, a few times over."""

    rollout_length: int = setting(64, "Steps of every environment in a rollout.", minimum=1, maximum=100_000)
    epochs: int = setting(3, "How many times each step of a rollout is learned from.", minimum=1, maximum=1_000)
    batch_size: int = setting(256, "Steps in a minibatch.", minimum=1, maximum=65536)

    def check(self) -> None:
        super().check()
        steps = self.rollout_length * self.envs_per_worker
        if self.batch_size > steps:
            raise UserError(
                f"--batch_size={self.batch_size}: must be at most the {steps} steps of a rollout, "
                f"--rollout_length={self.rollout_length} x --envs_per_worker={self.envs_per_worker}"
            )


@dataclasses.dataclass(frozen=True)
class EntropySettings(Config):
    """A bonus for a random policy."""

    entropy_cost: float = setting(0.01, "Weight of the entropy bonus at the start.", minimum=0)
    final_entropy_cost: float = setting(
        -1.0,
        "Weight of the entropy bonus from --entropy_steps on, reached in a straight line; -1: constant.",
        minimum=-1,
    )
    entropy_steps: int = setting(
        0,
        "Agent steps over which the weight of the entropy bonus falls; 0: --total_steps.",
        minimum=0,
        not_with={"final_entropy_cost": (-1.0,)},
    )

    def check(self) -> None:
        super().check()
        if -1 < self.final_entropy_cost < 0:
            raise UserError(f"--final_entropy_cost={self.final_entropy_cost}: must be -1 (constant) or at least 0")


@dataclasses.dataclass(frozen=True)
class TargetSettings(Config):
    """A target network."""

    target_period: int = setting(
        1_000, "Minibatches of all workers between two refreshes of the target network.", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class ExplorationSettings(Config):
    """Epsilon-greedy exploration."""

    exploration: str = setting(
        "shared",
        "shared: one falling epsilon for all; ape_x: a constant one for each environment, 0.4 ** (1 + 7 i / (N - 1)) "
        "with i over the N environments of all workers; drawn: each environment's falls to 0.1, 0.01 or 0.5, drawn "
        "with probability 0.4, 0.3 and 0.3.",
        choices=("shared", "ape_x", "drawn"),
    )
    epsilon_start: float = setting(
        1.0,
        "Exploration at the start.",
        minimum=0,
        maximum=1,
        not_with={"exploration": ("ape_x",), "noisy": (True,)},
    )
    epsilon_final: float = setting(
        0.01,
        "Exploration at the end.",
        minimum=0,
        maximum=1,
        not_with={"exploration": ("ape_x", "drawn"), "noisy": (True,)},
    )
    epsilon_steps: int = setting(
        100_000,
        "Agent steps over which exploration falls, after any warm-up.",
        minimum=1,
        not_with={"exploration": ("ape_x",), "noisy": (True,)},
    )

    def shared_names(self) -> set[str]:
        """As in `Fields`. Where environments explore differently, all workers number them alike."""
        return super().shared_names() | ({"envs_per_worker"} if self.exploration != "shared" else set())
