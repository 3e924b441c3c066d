"""What the adjoint solver found, into the step's metrics; and a warning when its series grows."""

import logging

from looprl.gradients import AdjointSolution
from looprl.measure.meter import StepMeter

_logger = logging.getLogger(__name__)


class AdjointLog:
    """Called with each solution. Sequences without advantage have no adjoint and do not count.

    `replay/neumann_steps`, `replay/neumann_remainder` and `replay/spectral_estimate` are means over sequences;
    `replay/neumann_growth` counts those with a term larger than the one before, of which the first is warned about.
    """

    def __init__(self, meter: StepMeter):
        self.meter = meter
        self._warned = False

    def __call__(self, found: AdjointSolution) -> None:
        solved = found.solved
        count, grew = int(solved.sum()), int(found.grew.sum())
        self.meter.mean("replay/neumann_steps", float(found.steps[solved].sum()), count)
        self.meter.mean("replay/neumann_remainder", float(found.remainder[solved].sum()), count)
        self.meter.mean("replay/spectral_estimate", float(found.growth.nansum()), int((~found.growth.isnan()).sum()))
        self.meter.count("replay/neumann_growth", grew)
        if grew and not self._warned:
            self._warned = True
            _logger.warning(
                "in the Neumann series of %d of %d sequences a term is larger than the one before (the largest last "
                "ratio is %.2f). Where the last ratio is above 1 too, the loop does not contract, and the gradient may "
                "be far from full BPTT's: `looprl inspect` and control_every tell more. Later cases are counted in "
                "replay/neumann_growth",
                grew,
                count,
                float(found.growth[found.grew].max()),
            )
