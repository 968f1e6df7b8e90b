"""The time that results/summarize.py counts, over the sessions of a run."""

import pytest

from results.summarize import wall_seconds


@pytest.mark.parametrize(
  ("lines", "expected"),
  [
    ([], 0.0),
    ([(2.0, 2.0), (2.0, 14.0), (2.0, 26.0)], 26.0),
    # Resumed after the second line; the clock starts again.
    ([(2.0, 2.0), (2.0, 14.0), (2.0, 2.5), (2.0, 9.0)], 14.0 + 9.0),
    # Stopped soon: the second session's first line is later on its clock than the one before, but
    # not by the time of its own steps.
    ([(2.0, 2.0), (2.0, 2.5), (2.0, 9.0)], 2.0 + 9.0),
    # Steps without a break between them are one session, however the clock was rounded.
    ([(0.1, 0.1), (0.2, 0.3), (0.3, 0.6 - 1e-9)], 0.6),
  ],
)
def test_wall_clock_is_summed_over_sessions(lines, expected):
  timings = [{"seconds": seconds, "wall_seconds": wall} for seconds, wall in lines]
  assert wall_seconds(timings) == pytest.approx(expected)
