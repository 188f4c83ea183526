"""Pipelines that are never drained: each rank updates its own weights when its gradients are complete, and runs every
micro-batch on the version of the weights that the schedule says.

Micro-batches are counted through all steps, i = 0, 1...; version t has t updates. With u micro-batches an update,
micro-batch i belongs to update i // u and runs on version i // u - behind(i) (`Schedule.updates_behind`):

| schedule | u | forward on | backward on |
| --- | --- | --- | --- |
| pipedream | 1 | version i - (p - 1 - r) | the same |
| 2bw | m | version i // m - 1 | the same |
| xpipe | m | newest, predicted by Adam's moments as far as it is behind, once a mini-batch | the same |
| spectrain | 1 | newest, predicted by the momentum p - 1 - r updates ahead | newest |
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planner.base.errors import LayoutError, ScheduleError
from planner.schedules.operations import Operation
from planner.trainer.arrays import Array
from planner.trainer.executor import Batch, Hooks
from planner.trainer.optimizers import SGD, Adam
from planner.trainer.worker import Worker

Weights = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """How a schedule chooses weights. mini_batch: whether m micro-batches make an update, or each its own.

    predicted: forwards run on predicted weights; backward_newest: backwards on the newest, not on the forward's.
    """

    mini_batch: bool
    predicted: bool = False
    backward_newest: bool = False


STALENESS = {
    "pipedream": Staleness(mini_batch=False),
    "2bw": Staleness(mini_batch=True),
    "xpipe": Staleness(mini_batch=True, predicted=True),
    "spectrain": Staleness(mini_batch=False, predicted=True, backward_newest=True),
}


class _Versions(Hooks):
    """One rank's versions: swaps weights in before each operation, updates after the last of a mini-batch."""

    def __init__(self, worker: Worker, rule: Staleness, per_update: int, behind: Callable[[int], int]) -> None:
        self.worker, self.rule, self.per_update, self.behind = worker, rule, per_update, behind
        self.newest = 0
        self.kept: dict[int, Weights] = {0: dict(worker.store.versions)}
        self.predictions: dict[int, Weights] = {}
        self.most_kept = 1
        self._done: Counter[int] = Counter()

    def before(self, here: Operation) -> None:
        """The weights that the operation runs on."""
        self.worker.store.use(self._weights(here))

    def after(self, here: Operation) -> None:
        """An update where the mini-batch is complete."""
        if here.kind not in "BW" or here.slice:
            return
        mini_batch = here.micro_batch // self.per_update
        self._done[mini_batch] += 1
        if self._done[mini_batch] == self.per_update:
            self._update()
            self.predictions.pop(mini_batch, None)

    def _weights(self, here: Operation) -> Weights:
        i = here.micro_batch
        if here.kind == "W" or (here.kind != "F" and self.rule.backward_newest):
            return self.kept[self.newest]
        if self.rule.predicted:
            mini_batch = i // self.per_update
            if mini_batch not in self.predictions:
                self.predictions[mini_batch] = self._predicted(self.behind(i))
            return self.predictions[mini_batch]
        version = self._version(i)
        if here.kind == "F":
            # Micro-batches enter in order, so older versions are only for those in flight.
            in_flight = min(self._version(self._oldest()), version)
            self.kept = {v: w for v, w in self.kept.items() if v >= in_flight}
        if version not in self.kept:
            raise ScheduleError(f"{here.kind}{i} needs version {version} of the weights; there are {sorted(self.kept)}")
        return self.kept[version]

    def _version(self, micro_batch: int) -> int:
        """The version that a micro-batch runs on, where none is predicted."""
        return micro_batch // self.per_update - self.behind(micro_batch)

    def _oldest(self) -> int:
        """The first micro-batch whose backward hasn't run; they run in order."""
        return sum(self._done.values())

    def _predicted(self, ahead: int) -> Weights:
        """Newest weights moved on as `ahead` more updates like the last would: momentum's or Adam's direction."""
        optimizer, xp = self.worker.optimizer, self.worker.communicator.xp
        newest = self.kept[self.newest]
        if not ahead or not optimizer.states:
            return newest
        return {
            n: w - ahead * optimizer.learning_rate * optimizer.direction(xp, n, self.newest) for n, w in newest.items()
        }

    def _update(self) -> None:
        """Complete the gradients and make the next version of them and the newest weights."""
        worker = self.worker
        worker.store.reduce_gradients()
        old = self.kept[self.newest]
        # Gradients that are taken at the newest version alone leave no one who reads it later: still a new array.
        new = {name: array.copy() for name, array in old.items()}
        self.newest += 1
        worker.store.use(new)
        worker.apply(self.newest)
        worker.store.clear_gradients()
        self.kept[self.newest] = new
        first = self.newest if self.rule.predicted else min(self._version(self._oldest()), self.newest)
        self.kept = {v: w for v, w in self.kept.items() if v >= first}
        self.most_kept = max(self.most_kept, len(self.kept))


def run_asynchronously(
    worker: Worker, batch: Batch, rule: Staleness, updates_behind: Callable[[int, int], int]
) -> tuple[Sequence[float], int]:
    """Run all steps of the worker's rows; returns each mini-batch's mean loss, and most versions of weights kept.

    batch: micro-batches of all steps; its `num_tokens` are those of one update, all replicas together.
    updates_behind: of a rank and a micro-batch.

    Raises LayoutError if something is shared or sharded that ranks can't update each on their own.
    """
    task, store = worker.task, worker.store
    if task.zero or any(len(group) > 1 for group in store.holders.values()):
        raise LayoutError(
            "an asynchronous schedule needs zero 0, an untied head and no multi-token prediction: ranks update apart"
        )
    if rule.predicted and not isinstance(worker.optimizer, Adam | SGD):
        raise LayoutError("predicted weights need an optimizer with a momentum: adam, adamw or sgd")
    if rule.predicted and task.offload_fraction:
        raise LayoutError("predicted weights need an optimizer on the device: offload_fraction 0")
    per_update = task.micro_batches if rule.mini_batch else 1
    versions = _Versions(worker, rule, per_update, lambda i: int(updates_behind(worker.mesh.p, i)))
    store.clear_gradients()
    losses: dict[int, float] = worker.executor.run(batch, versions)
    store.use(versions.kept[versions.newest])
    worker.steps += versions.newest
    num_updates = batch.tokens.shape[0] // per_update
    totals: list[Any] = [0.0] * num_updates
    for i, loss in losses.items():
        totals[i // per_update] += loss
    return [float(x) for x in worker.over_replicas(totals)], versions.most_kept
