"""The loops of the parts of an agent: generators of steps, which trackers consume."""

import contextlib
import time
from collections.abc import Generator, Sequence
from typing import NamedTuple

from async_dqn.base.types import BadValue, Episode
from async_dqn.envs.vector_env import VectorEnv
from async_dqn.run.actor import Actor
from async_dqn.run.planner import Planner
from async_dqn.run.separate import SendingActor, SeparateLearner
from async_dqn.run.stuck import Gate
from async_dqn.store.client import ParameterClient

_WAIT = 0.02  # seconds between two questions whether others have given steps back, made room, or sent something
_LONGEST_WAIT = 0.1  # else what comes meanwhile might find a queue full


class Tick(NamedTuple):
    """One step of all environments: how many agent steps it counted for, the games that ended with it, bad values."""

    num_steps: int
    episodes: list[Episode]
    bad_values: Sequence[BadValue] = ()


def run_loop(
    actor_learner: Actor, env: VectorEnv | Gate, client: ParameterClient, *, claim: int, overlap_steps: bool = False
) -> Generator[Tick, None, None]:
    """Acts, observes and learns until the global step budget is spent or the run is stopped.

    With `overlap_steps` it learns what the steps before call for while the environments take the next one; what
    the very last step calls for stays due. That order does not depend on the timing of threads.

    Agent steps are claimed `claim` vector steps at a time. Where the budget does not divide by the number of
    environments, only the granted part of the last vector step counts, so that the budget is met exactly. While all
    of it is claimed but not yet taken, the rest is with others: the loop waits, as one of them may be lost and its
    steps then be granted again. The last claim is always refused. By that a store where updates wait for all workers
    knows that this one has no more to give.

    An error in a step is raised after its tick, also where the loop is closed at that tick.
    """
    granted = 0
    enter = client.clock.enter
    try:
        while True:
            if not granted and not (granted := client.claim_steps(claim * env.num_envs)):
                if client.is_over:
                    return
                time.sleep(_WAIT)
                yield Tick(0, [])
                continue
            num_steps = min(env.num_envs, granted)
            granted -= num_steps
            enter("acting")
            actions = actor_learner.act()
            enter("environment")
            env.send(actions)
            tick = Tick(0, [])
            failure: Exception | None = None
            try:
                try:
                    if overlap_steps:
                        actor_learner.learn()
                finally:  # whatever happened, the step was begun
                    enter("environment")
                    result = env.receive()
                    enter("experience")
                    actor_learner.observe(actions, result, num_steps)
                    client.count(env_steps=num_steps, bad_values=len(result.bad_values))
                    episodes = [episode for episode in result.episodes if episode.environment < num_steps]
                    tick = Tick(num_steps, episodes, result.bad_values)
                if not overlap_steps:
                    actor_learner.learn()
            except Exception as error:  # the step and its games were taken, so the caller hears of them first
                failure = error
            enter("other")
            try:
                yield tick
            finally:  # also where the caller closes the loop here
                if failure:
                    raise failure
    finally:
        actor_learner.settle()
        client.count(claimed_steps=-granted)  # what an interrupted worker leaves, another may take


def run_actor(
    actor: SendingActor, env: VectorEnv | Gate, client: ParameterClient, *, claim: int
) -> Generator[Tick, None, None]:
    """Acts like `run_loop`, and sends each block before the next step; while there is no room for it, it waits."""
    yield from _send(actor, client, partly=False)  # of before an outage
    with contextlib.closing(run_loop(actor, env, client, claim=claim)) as ticks:
        for tick in ticks:
            yield tick
            yield from _send(actor, client, partly=False)
            if client.counters.stopped:
                break
    yield from _send(actor, client, partly=True)


def _send(actor: SendingActor, client: ParameterClient, *, partly: bool) -> Generator[Tick, None, None]:
    part = client.clock.enter("waiting")
    while not actor.send(partly=partly) and not client.counters.stopped:
        _wait_among(actor.agent.config.num_workers - 1)
        yield Tick(0, [])
    client.clock.enter(part)


def run_learner(learner: SeparateLearner, client: ParameterClient) -> Generator[Tick, None, None]:
    """Learns from what the actors send, until the budget is spent and all of it has come, or the run is stopped.

    So it never computes more minibatches than the steps that it received call for. As the queue is bounded, actors
    wait for it where they are faster, and it is never further behind than what the queue holds.
    """
    is_done = False
    while not client.counters.stopped:
        if learner.learn():
            yield Tick(0, [])
        elif is_done:  # and nothing has come since
            return
        else:
            is_done = learner.is_done()
            part = client.clock.enter("waiting")
            if not is_done:
                time.sleep(_WAIT)
            client.clock.enter(part)
            yield Tick(0, [])


def run_planner(planner: Planner, client: ParameterClient) -> Generator[Tick, None, None]:
    """Trains the model on what comes in and plans with it, by turns, until the run is over.

    As the queue of what it plans is bounded, it waits where it is faster than the learner.
    """
    while not planner.is_done():
        has_learned = planner.learn()
        if not planner.plan() and not has_learned:
            part = client.clock.enter("waiting")
            _wait_among(planner.agent.config.num_workers - 1)
            client.clock.enter(part)
        yield Tick(0, [])


def _wait_among(number: int) -> None:
    """The more workers wait for the same, the longer each does: one ps answers them all."""
    time.sleep(min(_LONGEST_WAIT, number * _WAIT))
