"""The groups in flight: begins them, sees their members through, settles them, and hands them to the trainer.

Everything that a group decides is on disk before it is acted on. A group that ends in a bug ends the run, and the run
can be resumed; a group that ends for want of machinery ends alone.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from openmle_gym.errors import ConfigError, InfrastructureError
from openmle_gym.experience import ExperienceCard
from openmle_gym.operators import Operator

from openmle_erl.rewards.presets import RewardSettings
from openmle_erl.rl.breaker import Breaker
from openmle_erl.rl.experience import Experience
from openmle_erl.rl.groups import Group, GroupConfig, GroupState, completion, drop, settle
from openmle_erl.rl.queue import GroupQueue
from openmle_erl.rl.rollout import LearnTask, Road, seeded
from openmle_erl.rl.samples import Fate, Member

AGAIN_SECONDS = 10.0
"""A member whose machinery failed is tried again after so long, then after twice so long, ..."""

log = logging.getLogger(__name__)


@dataclass
class QueueConfig:
    """How far rollouts run ahead of the trainer."""

    in_flight_groups: int = 16
    """Groups that are being generated or executed at once."""
    ready_groups: int = 32
    """With so many groups waiting for the trainer no further one is begun."""
    max_staleness: int | None = 8
    """A group whose oldest tokens are more weight updates old than this is dropped, and counted; null: no limit."""

    def __post_init__(self) -> None:
        for name in ("in_flight_groups", "ready_groups"):
            if getattr(self, name) < 1:
                raise ConfigError(f"queue.{name}: must be at least 1, got {getattr(self, name)}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ConfigError(f"queue.max_staleness: must be 0 or more, or null, got {self.max_staleness}")


@dataclass(kw_only=True)
class Pool:
    """Rollouts of one run. Without `asynchronous`, groups are begun only while the trainer waits for them."""

    road: Road
    tasks: Mapping[str, LearnTask]
    queue: GroupQueue
    experience: Experience
    breaker: Breaker
    shares: Mapping[Operator, float]
    rewards: RewardSettings
    group: GroupConfig
    limits: QueueConfig
    samples_per_group: int
    groups_per_step: int
    asynchronous: bool
    seed: int

    def __post_init__(self) -> None:
        self._in_flight: dict[int, Group] = {}
        self._ready: list[Group] = []
        self._news = asyncio.Condition()
        self._wanted = 0  # groups that are still to be trained on, those in flight and ready included
        self._waiting = False
        self._refills = 0
        self._stopping = False
        self.version = 0
        """Of the weights that the engines have."""
        self.counts: Counter[str] = Counter()
        """What happened in this life of the run: refills, and tries that failed."""

    @property
    def in_flight(self) -> int:
        """How many groups are being generated or executed."""
        return len(self._in_flight)

    @property
    def ready(self) -> int:
        """How many groups wait for the trainer."""
        return len(self._ready)

    async def run(self, cards: Mapping[int, ExperienceCard]) -> None:
        """Keeps groups in flight until it is cancelled; first those that an earlier life of the run left.

        Args:
            cards: The run's cards so far, by attempt.
        """
        self._ready += self.queue.groups(GroupState.READY, cards)
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in self.queue.groups(GroupState.IN_FLIGHT, cards):
                    self._start(group, tasks)
                await self._tell()
                while True:
                    await self._admit(tasks)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    async def _admit(self, tasks: asyncio.TaskGroup) -> None:
        """Begins a group, once there is room for it and the breaker lets it."""
        async with self._news:
            await self._news.wait_for(self._has_room)
        wait = self.breaker.wait_seconds()
        if wait > 0.0:
            await asyncio.sleep(wait)
        else:
            self._start(self._begin(), tasks)

    async def take(self, count: int, *, wanted: int) -> list[Group]:
        """Waits for so many groups and takes them: of the tasks that were trained on least, the oldest first.

        Args:
            wanted: How many groups will ever be taken, with these.

        Returns:
            No group when the pool was told to stop.
        """
        self._waiting, self._wanted = True, wanted
        self._refills = round(self.group.refills * count)
        async with self._news:
            self._news.notify_all()
            await self._news.wait_for(lambda: self._stopping or self._enough(count))
            self._waiting, self._wanted = False, wanted - count
            if self._stopping:
                return []
            exposure = Counter(self.queue.exposure())
            taken: list[Group] = []
            for _ in range(count):
                least = min(self._ready, key=lambda group: (exposure[group.task], group.settled))
                self._ready.remove(least)
                exposure[least.task] += 1
                taken.append(least)
            self._news.notify_all()
            return taken

    async def stop(self) -> None:
        """Begins no further group, and lets nobody wait for one."""
        self._stopping = True
        await self._tell()

    def _enough(self, count: int) -> bool:
        most = self.limits.max_staleness
        stale = [group for group in self._ready if most is not None and self.version - group.oldest_version > most]
        for group in stale:
            log.warning("group %d is dropped: %d updates old", group.number, self.version - group.oldest_version)
            drop(group, Fate.STALE)
            self._ready.remove(group)
        self.queue.dropped(stale)
        return len(self._ready) >= count

    def _has_room(self) -> bool:
        begun = len(self._in_flight) + len(self._ready)
        if self._stopping or begun >= self._wanted or len(self._in_flight) >= self.limits.in_flight_groups:
            return False
        if not self.asynchronous:
            return self._waiting and begun < self.groups_per_step
        return len(self._ready) < self.limits.ready_groups

    def _begin(self) -> Group:
        number, attempt = self.queue.next_group(), self.queue.next_attempt()
        name = task_of(number, sorted(self.tasks), self.seed)
        beginning = self.road.begin(self.tasks[name], self.shares, number)
        group = Group(
            number=number,
            task=name,
            operator=beginning.operator,
            parents=beginning.parents,
            selection=beginning.selection,
            prompt=beginning.prompt,
            version=self.version,
            members=[Member(attempt=attempt + place) for place in range(self.samples_per_group)],
        )
        self.queue.begin(group)
        return group

    def _start(self, group: Group, tasks: asyncio.TaskGroup) -> None:
        self._in_flight[group.number] = group
        tasks.create_task(self._see_through(group))

    async def _see_through(self, group: Group) -> None:
        """A group, from its prompt to the trainer's queue."""
        await self._gather(group)
        parents = self.experience.parents(group.task, group.parents)
        scoring, history = self.tasks[group.task].scoring, self.experience.scores(group.task)
        without_signal = settle(group, scoring, parents, history, self.rewards, self.group)
        if without_signal and self._refills > 0:
            self._refills -= 1
            self.counts["refills"] += 1
            drop(group, Fate.NO_SIGNAL)
        self.queue.settle(group)
        for member in group.members:
            if member.card is not None and not np.isnan(member.base_reward):
                self.experience.enter(member.card, member.base_reward, group=group.number)
        del self._in_flight[group.number]
        if group.state is GroupState.READY:
            self._ready.append(group)
        await self._tell()

    async def _gather(self, group: Group) -> None:
        """Sees the members through until the group is complete."""
        clock = asyncio.get_running_loop().time
        pending = {asyncio.create_task(self._member(group, each)) for each in group.members if not each.is_over}
        enough_since: float | None = None
        try:
            while pending:
                if enough_since is None and len(group.judged) >= self.group.least:
                    enough_since = clock()
                rule = completion(group, enough_since=enough_since, now=clock(), config=self.group)
                if rule.complete:
                    break
                done, pending = await asyncio.wait(
                    pending, timeout=rule.wait_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _member(self, group: Group, member: Member) -> None:
        """A member, from its number to its verdict; over what an earlier life of the run has done it does not go again."""
        tries = 0
        while tries < self.group.tries:
            probe = await self.breaker.enter()
            try:
                async with asyncio.timeout(self.group.try_seconds):
                    if member.rolled is None:
                        member.rolled = await self.road.generate(group, member)
                        self.queue.rolled(member)
                    judged = await self.road.judge(self.tasks[group.task], group, member)
            except (InfrastructureError, TimeoutError) as error:
                log.warning("attempt %d: %s: %s", member.attempt, type(error).__name__, error)
                self.counts["failed_tries"] += 1
                self.breaker.record(ok=False)
                if probe:  # is not lost by it, and lets another one probe next, as the failure may be its own
                    await asyncio.sleep(self.breaker.wait_seconds() + AGAIN_SECONDS)
                else:
                    tries += 1
                    await asyncio.sleep(tries * AGAIN_SECONDS)
                continue
            self.experience.write(judged.card)
            member.card, member.duplicate, executed = judged
            self.queue.judged(member)
            if executed:  # else nothing is known of the machinery
                self.breaker.record(ok=True)
            return
        member.fate = Fate.INFRASTRUCTURE

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def task_of(number: int, tasks: Sequence[str], seed: int) -> str:
    """The task of a group: all tasks in a shuffled order, then all in another, so their numbers never differ by more
    than one."""
    epoch, place = divmod(number, len(tasks))
    return random.Random(seeded(seed, "epoch", epoch)).sample(tasks, len(tasks))[place]
