"""Affine matches between templates: found where there is one, and not where there is none."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import template_match
from experiments.template_match import MATCH, match_errors, match_templates, moments
from scae_jax.math.warping import warp_template

SIDE = 13
LINE = np.linspace(-1, 1, SIDE)
Y, X = np.meshgrid(LINE, LINE, indexing="ij")


def strokes(*ends, width=0.13):
  """A picture of straight strokes, each from (x, y) to (x, y), soft at the edges."""
  picture = np.zeros((SIDE, SIDE))
  for x0, y0, x1, y1 in ends:
    length = (x1 - x0) ** 2 + (y1 - y0) ** 2
    along = np.clip(((X - x0) * (x1 - x0) + (Y - y0) * (y1 - y0)) / length, 0, 1)
    away = np.hypot(X - x0 - along * (x1 - x0), Y - y0 - along * (y1 - y0))
    picture = np.maximum(picture, np.exp(-0.5 * (away / width) ** 2))
  return picture[..., None].astype(np.float32)


# A 7 with a foot: no affine map but the identity takes it to itself, and none without a mirror to
# its mirror image.
SEVEN = strokes((-0.5, -0.5, 0.4, -0.5), (0.4, -0.5, -0.1, 0.6), (-0.1, 0.6, 0.3, 0.6))
RING = np.exp(-0.5 * ((np.hypot(X, Y) - 0.55) / 0.15) ** 2)[..., None].astype(np.float32)
LINES = strokes((-0.6, -0.4, 0.6, -0.4), (-0.6, 0.4, 0.6, 0.4))


def moved(picture, linear, shift=(0.0, 0.0)):
  pose = np.column_stack([linear, shift]).astype(np.float32)
  return np.asarray(warp_template(jnp.asarray(picture), jnp.asarray(pose), SIDE, SIDE))


def turned(picture, degrees, **others):
  cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
  return moved(picture, [[cos, -sin], [sin, cos]], **others)


@pytest.fixture(scope="module")
def errors():
  """Least errors between shapes; the last two are the first one turned, and sheared and shrunk."""
  leaning = moved(SEVEN, [[0.8, 0.4], [-0.1, 0.7]], (0.1, -0.1))
  shapes = [SEVEN, RING, LINES, turned(SEVEN, 112), leaning]
  return np.asarray(match_errors(jnp.asarray(np.stack(shapes))))


def test_moved_copies_match_and_other_shapes_do_not(errors):
  # The first start fits centre and moments: of itself, it is the identity.
  assert np.diag(errors).max() < 1e-6
  for copy in (3, 4):
    assert errors[copy, 0] < 1e-4  # the pose that made it
    # Brought back, it is blurred: of 13 pixels a side, a smaller copy has kept half.
    assert errors[0, copy] < MATCH
  different = errors[:3, :3][~np.eye(3, dtype=bool)]
  assert different.min() > 2 * MATCH
  assert different.max() <= 1


def test_a_mirror_image_matches_and_all_numbers_are_told():
  shapes = np.stack([SEVEN, RING, LINES, SEVEN[:, ::-1], np.zeros_like(SEVEN), LINES])
  record = match_templates(shapes)
  assert (record["templates"], record["blank"]) == (6, [4])
  assert re.fullmatch(r"1 of 6 templates\b.* 4\.", *record["notes"])
  assert [entry["template"] for entry in record["nearest"]] == [0, 1, 2, 3, 5]
  nearest = {entry["template"]: entry for entry in record["nearest"]}
  for template, mirrored in ((0, 3), (3, 0), (2, 5), (5, 2)):
    assert nearest[template]["by"] == mirrored
    assert nearest[template]["error"] < 1e-6  # mirrored, pixels fall on pixels
  least = [entry["error"] for entry in record["nearest"]]
  assert record["mean_error"] == pytest.approx(np.mean(least))
  assert record["matched"] == pytest.approx(4 / 5)
  assert record["match_below"] == MATCH


def test_templates_are_seen_through_their_alphas(monkeypatch):
  """Flat templates have the shape of their alphas; what alpha hides has no ink."""
  seen = []
  # The least error of each row but its own: of the third column, the first, and, of two alike, the
  # first again.
  record = [[0.0, 0.9, 0.3], [0.2, 0.0, 0.5], [0.3, 0.3, 0.0]]

  def errors(ink):
    seen.append(np.asarray(ink))
    return jnp.array(record)

  monkeypatch.setattr(template_match, "match_errors", errors)
  alphas = np.stack([SEVEN, np.zeros_like(SEVEN), RING, LINES])
  result = match_templates(np.ones_like(alphas), alphas)
  assert result["blank"] == [1]
  assert [(entry["template"], entry["by"]) for entry in result["nearest"]] == [
    (0, 3),
    (2, 0),
    (3, 0),
  ]
  assert [entry["error"] for entry in result["nearest"]] == pytest.approx([0.3, 0.2, 0.3])
  assert match_templates(alphas) == result
  np.testing.assert_array_equal(seen, np.stack([alphas[[0, 2, 3]]] * 2))
  blank = np.zeros((3, 3, 3, 1))
  blank[1] = 1
  with pytest.raises(ValueError, match="1 of 3 templates"):
    match_templates(blank)


def test_moments_are_those_of_a_cloud_of_squares():
  rng = np.random.RandomState(0)
  ink = rng.uniform(size=(SIDE, SIDE, 2)).astype(np.float32) * SEVEN
  centre, root = moments(jnp.asarray(ink))
  weights = ink.sum(axis=-1).ravel()
  points = np.stack([X.ravel(), Y.ravel()])
  expected = np.cov(points, aweights=weights, ddof=0) + np.eye(2) * (2 / (SIDE - 1)) ** 2 / 12
  np.testing.assert_allclose(centre, np.average(points, axis=1, weights=weights), atol=1e-6)
  np.testing.assert_allclose(root @ root, expected, atol=1e-6)
  np.testing.assert_allclose(root, root.T, atol=1e-7)
