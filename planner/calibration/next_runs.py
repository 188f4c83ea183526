"""The next runs to measure: of those that fit on the fewest nodes the two that narrow an answer's step most.

The update of `planner.calibration.anchor` is linear and Gaussian, so how much a run narrows does not depend on what it
will measure (Lindley 1956, On a measure of the information provided by an experiment; recalled). A run's information on
a step is half the logarithm of how many times smaller the variance of its figures' part becomes.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError, LayoutError
from planner.calibration.anchor import AnchoredSetup, layout_slopes, open_variance
from planner.layouts import Layouts
from planner.search import Recommendation
from planner.search import recommend as search
from planner.search.pick import first_of_each, kinds
from planner.setup import Setup

SIZES = 2
"""Node counts that candidates run on: the fewest of those doubled from one on which something fits."""
RIVALS = 100
USUAL = 1.25
"""Times the fastest that fits on as many GPUs up to which a layout is a candidate: what nobody would train with errs in
ways of its own."""


@dataclass(frozen=True, eq=False, kw_only=True)
class NextRuns:
    """The uncertainty of an answer's step, and two runs that narrow it.

    open_share: of its variance, by `KINDS` and last a run's own error, shape (7,). half_width: of its interval of 80 %
    in logarithms, now, with the first run and with both, shape (3,). deviation: of the figures, so, shape (3, 6).
    information: of each run in nats, shape (2,).
    """

    layouts: Layouts
    open_share: Array
    half_width: Array
    deviation: Array
    information: Array


def known_after(covariance: Array, slopes: Array, noise: float) -> Array:
    """The figures' covariance once a run is known whose log step time moves so with them, shape (6,)."""
    across = covariance @ slopes
    return np.asarray(covariance - np.outer(across, across) / (slopes @ across + noise**2))


def best_two(covariance: Array, noise: float, candidates: Array, targets: Array) -> tuple[int, int]:
    """The pair of candidates that leaves the targets' step times the least variance, the one that tells more first.

    candidates, targets: slopes of log step times by the figures, shapes (n, 6) and (m, 6).
    """
    once = [known_after(covariance, s, noise) for s in candidates]
    left = np.array([
        [open_variance(known_after(c, s, noise), targets).sum() if j > i else np.inf for j, s in enumerate(candidates)]
        for i, c in enumerate(once)
    ])  # fmt: skip
    i, j = np.unravel_index(np.argmin(left), left.shape)
    first, second = sorted((int(i), int(j)), key=lambda k: float(open_variance(once[k], targets).sum()))
    return first, second


def next_runs(setup: AnchoredSetup, found: Recommendation) -> NextRuns | None:
    """The two runs to measure next for an answer's best layouts; None where there are no two to choose from."""
    layouts = _candidates(setup, found)
    if layouts is None or not len(found.best):
        return None
    u = setup.anchor.update
    slopes, targets = layout_slopes(setup, layouts), layout_slopes(setup, found.estimate.layouts.take(found.best))
    pair = best_two(u.covariance, u.before.noise, slopes, targets)
    steps = [u]
    for i in pair:
        known = known_after(steps[-1].covariance, slopes[i], u.before.noise)
        steps.append(replace(steps[-1], covariance=known, freedom=steps[-1].freedom + 1.0))
    own = targets[0]
    variance = np.array([open_variance(step.covariance, targets[:1])[0] for step in steps])
    return NextRuns(
        layouts=layouts.take(list(pair)),
        open_share=np.append(own * (u.covariance @ own), u.before.noise**2) / (variance[0] + u.before.noise**2),
        half_width=np.array([step.half_width(targets[:1])[0] for step in steps]),
        deviation=np.stack([step.deviation() for step in steps]),
        information=0.5 * np.log(variance[:-1] / variance[1:]),
    )


def _candidates(setup: Setup, found: Recommendation) -> Layouts | None:
    """Layouts that fit on the fewest nodes, of twins the fastest, with a share of the batch; None where there are < 2.

    What the question settles holds for them too.
    """
    request, out = found.request, []
    sizes = [setup.cluster.gpus_per_node << k for k in range(request.gpus.bit_length())]
    for gpus in [n for n in sizes if n < request.gpus] + [request.gpus]:
        try:
            part = request.sized(gpus, max(request.global_batch * gpus // request.gpus, 1))
            few = search(setup, **part.question, rivals=RIVALS, plainest=True)
        except (InputError, LayoutError):  # numbers that nothing divides
            continue
        result = few.estimate
        order = np.argsort(result.step_time_s, kind="stable")
        order = first_of_each(order[result.fits[order]], kinds(result.layouts))
        order = order[result.step_time_s[order] <= USUAL * result.step_time_s[order[:1]]]
        out += [result.layouts.take(order)] if len(order) else []
        if len(out) == SIZES:
            break
    layouts = Layouts.concatenate(out) if out else None
    return layouts if layouts is not None and len(layouts) > 1 else None
