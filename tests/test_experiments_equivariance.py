"""Equivariance of systems whose poses follow perfectly, not at all, or in part; its command."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import equivariance
from experiments.equivariance import measure_displacements, measure_equivariance
from scae_jax.evaluation.evaluators import _keep_their_label
from scae_jax.evaluation.moved_parts import motions
from scae_jax.evaluation.report import Evaluated
from scae_jax.figures import FIGURES
from scae_jax.models.system import Encoding
from tests.stand_ins import call, labelled, open_for_commands, source_of, stub, texts, written
from tests.toy_system import toy_config

CANVAS, SIDE, NUM_IMAGES = 36, 24, 9


def pose_of_blobs(images):
  """The pose [b, 1, 2, 3] whose origin and units lie at the middles of what is red, green, blue."""
  line = jnp.linspace(-1, 1, images.shape[1])
  total = images.sum(axis=(1, 2))
  x = jnp.einsum("bhwc,w->bc", images, line) / total
  y = jnp.einsum("bhwc,h->bc", images, line) / total
  points = jnp.stack([x, y], axis=-1)
  origin = points[:, 0]
  columns = [points[:, 1] - origin, points[:, 2] - origin, origin]
  return jnp.stack(columns, axis=-1)[:, None]


def still(images):
  """A pose [b, 1, 2, 3] that does not move."""
  pose = jnp.array([[0.3, 0.1, 0.2], [-0.1, 0.4, -0.3]])
  return jnp.broadcast_to(pose, (len(images), 1, 2, 3))


def present(images, share):
  return jnp.full((len(images), 1), share)


def all_kinds(images):
  """Kinds of capsules of which it is known how they follow."""
  perfect, fixed = pose_of_blobs(images), still(images)
  light = images.sum(axis=(1, 2, 3))[:, None] / 600
  x_places = pose_of_blobs(images)[
    :, :, 0, 2
  ]  # x of the origin: what moves it changes the presence
  return {
    "perfect": (perfect, present(images, 0.8)),
    "fixed": (fixed, present(images, 0.8)),
    "absent": (perfect, present(images, 0.0)),
    "bright": (perfect, light),
    "by_place": (perfect, x_places),
  }


@pytest.fixture(scope="module")
def images():
  """A red, a green and a blue blob at random places, uint8 [9, 24, 24, 3]."""
  random = np.random.RandomState(0)
  y, x = np.mgrid[:SIDE, :SIDE]
  places = np.array([[9, 14], [15, 13], [11, 8]]) + random.uniform(-1.5, 1.5, (NUM_IMAGES, 3, 2))
  squares = np.square(x - places[..., :1, None]) + np.square(y - places[..., 1:, None])
  return np.rint(255 * np.exp(-squares / 4.5)).astype(np.uint8).transpose(0, 2, 3, 1)


def system_of(parts, objects):
  """A system whose parts and objects are of these kinds."""

  def encoding(images):
    kinds = all_kinds(images)
    (part_poses, part_presence), (object_poses, object_presence) = kinds[parts], kinds[objects]
    return Encoding(
      part_poses=part_poses,
      part_presence=part_presence,
      object_poses=object_poses,
      object_presence=object_presence,
    )

  return stub(encoding=encoding)


@pytest.fixture(scope="module")
def results(images):
  """As of one model with all kinds: of systems that have two of them."""
  merged = {}
  for parts, objects in (("perfect", "fixed"), ("absent", "bright"), ("by_place", "fixed")):
    system, names = system_of(parts, objects), {"parts": parts, "objects": objects}
    record = measure_equivariance(system, {}, images, canvas=CANVAS, batch_size=4)
    present = {names[kind]: values for kind, values in record.pop("present").items()}
    merged.setdefault("present", {}).update(present)
    for family, entries in record.items():
      renamed = [{names.get(key, key): value for key, value in entry.items()} for entry in entries]
      merged.setdefault(family, [{} for _ in entries])
      for entry, more in zip(merged[family], renamed, strict=True):
        entry.update(more)
  return merged


def entries(results):
  return [(family, entry) for family in equivariance.SIZES for entry in results[family]]


def moving(results):
  return [
    (family, entry)
    for family, entry in entries(results)
    if entry["size"] != (1 if family == "scaling" else 0)
  ]


ERRORS = ("pose_error", "shift_error", "pose_unmoved", "shift_unmoved")


def test_poses_that_follow_have_no_error_and_those_that_do_not_that_of_the_baseline(results):
  for family, sizes in equivariance.SIZES.items():
    assert tuple(entry["size"] for entry in results[family]) == sizes
  assert {entry["examples"] for _, entry in entries(results)} == {NUM_IMAGES}
  for family, entry in moving(results):
    perfect, fixed = entry["perfect"], entry["fixed"]
    # Whole pixels are exact but for float32; elsewhere resampling rounds to grey levels.
    tolerance = 1e-4 if family == "translation" else 0.1
    assert max(perfect["pose_error"], perfect["shift_error"]) < tolerance, (family, entry["size"])
    assert perfect["pose_unmoved"] > 8 * perfect["pose_error"]
    assert perfect["presence_change"] == 0
    for kind in ("pose", "shift"):
      # The same distances in float32, computed in two places.
      assert fixed[f"{kind}_error"] == pytest.approx(fixed[f"{kind}_unmoved"], rel=1e-5)
      assert fixed[f"{kind}_unmoved"] > 0.1


def test_baseline_is_what_the_motion_does_to_a_pose(results):
  """Against a loop over corners, in pixels, with the motion written out anew."""
  pose = np.asarray(still(np.zeros((1, 2, 2, 3)))[0, 0], np.float64)
  half = (CANVAS - 1) / 2

  def distance(motion):
    """`motion` takes pixels from the middle to pixels from the middle."""
    squares = []
    for corner in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
      before = half * (pose @ np.array([*corner, 1.0]))
      squares.append(np.sum(np.square(motion(before) - before)))
    return np.sqrt(np.mean(squares))

  for family, entry in entries(results):
    size = entry["size"]
    cos, sin = np.cos(np.radians(size)), np.sin(np.radians(size))
    expected = {
      "translation": lambda point, size=size: point + np.array([size, 0]),
      # To the right goes up, which is minus y: counter-clockwise.
      "rotation": lambda point, cos=cos, sin=sin: np.array(
        [cos * point[0] + sin * point[1], cos * point[1] - sin * point[0]]
      ),
      "scaling": lambda point, size=size: size * point,
    }[family]
    np.testing.assert_allclose(entry["fixed"]["pose_unmoved"], distance(expected), atol=1e-5)
  for entry in results["translation"]:
    np.testing.assert_allclose(entry["fixed"]["shift_unmoved"], entry["size"], atol=1e-5)


def test_means_by_hand():
  """Errors of 3, 0 and 0 pixels are weighted by presence before times after: 0.5, 0.25 and 1."""
  poses = np.broadcast_to(np.eye(2, 3), (3, 1, 2, 3))
  new_poses = poses.copy()
  new_poses[0, 0, 0, 2] += 3 * 2 / (CANVAS - 1)
  before = poses, np.array([[0.5], [1.0], [1.0]])
  after = new_poses, np.array([[1.0], [0.25], [1.0]])
  compared = equivariance._compare(before, after, np.eye(2, 3), CANVAS)
  means = equivariance._means({name: [values] for name, values in compared})
  expected = dict(zip(ERRORS, (1.5 / 1.75, 1.5 / 1.75, 0, 0), strict=True))
  assert means == pytest.approx({"presence_change": (0.5 + 0.75) / 3, **expected})


def test_change_of_presence_is_measured(results, images):
  """A presence that is the x of a blob changes by the shift, to the right as to the left."""
  for entry in results["translation"]:
    expected = entry["size"] * 2 / (CANVAS - 1) / 2  # two of the four directions change x
    np.testing.assert_allclose(entry["by_place"]["presence_change"], expected, atol=1e-5)
  brightness = images.sum(axis=(1, 2, 3)) / 255 / 600
  for entry in results["scaling"]:
    expected = np.mean(brightness * abs(entry["size"] ** 2 - 1))
    np.testing.assert_allclose(entry["bright"]["presence_change"], expected, atol=2e-3)
  present = results["present"]["bright"]
  np.testing.assert_allclose(present["presence"], brightness.mean(), rtol=1e-5)
  mixed = brightness[np.random.RandomState(0).permutation(len(brightness))]
  others = np.abs(mixed - np.roll(mixed, 1)).mean()
  np.testing.assert_allclose(present["presence_between_examples"], others, rtol=1e-4)


def test_what_cannot_be_measured_is_refused_or_left_out(images, monkeypatch):
  """All have room for 1 pixel, five of ten for 3, and two for 4: less than half, not measured."""
  room = np.zeros((10, 12, 12, 3), np.uint8)
  room[:2, 4:8, 4:8] = 100
  room[2:5, 3:9, 3:9] = 100
  room[5:, 3:9, 3:11] = 100
  monkeypatch.setattr(equivariance, "SIZES", {"translation": (1, 3, 4)})
  system = system_of("fixed", "bright")
  record = measure_equivariance(system, {}, room, canvas=12, batch_size=16)
  assert [(entry["size"], entry["examples"]) for entry in record["translation"]] == [
    (1, 10),
    (3, 5),
  ]
  # The mean is over those five: their presence is the same wherever they are.
  assert record["translation"][1]["objects"]["presence_change"] < 1e-6
  sizes = {"canvas": CANVAS, "batch_size": 4}
  vectors = Encoding(object_poses=np.ones((4, 2, 8)), object_presence=np.ones((4, 2)))
  for encoding in (Encoding(), vectors):
    system_without_poses = stub(encoding=lambda images, encoding=encoding: encoding)
    with pytest.raises(ValueError, match=r"\[b, n, 2, 3\]"):
      measure_equivariance(system_without_poses, {}, images[:4], **sizes)
  with pytest.raises(ValueError, match=r"\b2 images.* 1\b"):
    measure_equivariance(system, {}, images[:1], **sizes)


def blobs():
  """Images uint8 [8, 20, 20, 3] of a blob; its side and its brightness are its label."""
  count = 8
  images, labels = np.zeros((count, 20, 20, 3), np.uint8), np.arange(count) % 2
  for image, label in zip(images, labels, strict=True):
    column = 12 if label else 4
    image[8:12, column : column + 4] = 200 if label else 100
  return {"image": images, "label": labels.astype(np.int32)}


def system_with_winner(reads_places):
  """The winning object tells a blob's side, or its brightness."""

  def encoding_of(images, image_map=None):
    line = jnp.linspace(-1, 1, images.shape[1])
    x = jnp.einsum("bhwc,w->b", images, line) / images.sum(axis=(1, 2, 3))
    y = jnp.einsum("bhwc,h->b", images, line) / images.sum(axis=(1, 2, 3))
    poses = jnp.zeros((len(images), 1, 2, 3)).at[:, 0, :, 2].set(jnp.stack([x, y], axis=1))
    if image_map is not None:
      poses = poses.at[..., 2].add(image_map[None, None, :, 2])
    is_right = poses[:, 0, 0, 2] > 0 if reads_places else images.max(axis=(1, 2, 3)) > 0.5
    # Three objects: the first never wins.
    mass = jax.nn.one_hot(1 + is_right, 3)
    presence = jnp.ones((len(images), 1))
    return Encoding(part_poses=poses, part_presence=presence, posterior_mass=mass)

  return stub(
    encoding=encoding_of,
    encode_moved=lambda variables, batch, image_map: encoding_of(batch["image"], image_map),
  )


def test_objects_that_read_places_lose_their_digit_and_others_keep_it():
  """The label is the side of a blob: the winner of one system, and the brightness of another."""
  examples, canvas = blobs(), 32
  count = len(examples["label"])
  sizes = {"canvas": canvas, "batch_size": 3}
  places, brightness = (
    measure_displacements(system_with_winner(reads_places), {}, examples, **sizes)
    for reads_places in (True, False)
  )
  # A blob lies 3.5 pixels from the middle: two of four directions keep it, one keeps half of them.
  for entries in (places["parts"], places["images"][:3]):
    for entry in entries:
      assert entry["accuracy"] == (1.0 if entry["size"] < 4 else 0.75)
  for entries in brightness.values():
    assert {entry["accuracy"] for entry in entries} == {1.0}
  for entry in brightness["images"]:
    assert entry["place_error"] < 1e-3
  assert places["images"][0]["examples"] == count
  # Of images that fill the canvas, none keeps its ink.
  full = {**examples, "image": np.full((count, canvas, canvas, 3), 9, np.uint8)}
  of_full_images = measure_displacements(system_with_winner(False), {}, full, **sizes)
  assert [entry["size"] for entry in of_full_images["images"]] == [0]
  assert len(of_full_images["parts"]) == len(equivariance.DISPLACEMENTS)
  table_text = equivariance.displacements_table(of_full_images)
  assert len(table_text.splitlines()) == 2 + len(equivariance.DISPLACEMENTS)
  with pytest.raises(ValueError, match="parts"):
    measure_displacements(stub(), {}, examples, **sizes)


def test_a_report_has_the_share_that_keeps_its_label():
  """By a quarter of the canvas, 8 pixels: a blob 3.5 from the middle changes its side one way."""
  shares = {}
  for reads_places in (True, False):
    system = system_with_winner(reads_places)
    evaluated = Evaluated(system, {0: {}}, step=1, batch_size=3)
    shares[reads_places] = _keep_their_label(evaluated, {}, blobs(), 32)
  assert shares[True] == {"pixels": 8, "unmoved": 1.0, "kept": 0.75}
  assert shares[False] == {"pixels": 8, "unmoved": 1.0, "kept": 1.0}


def test_sizes_of_a_family_go_all_ways():
  shifts = sorted(map(tuple, motions("translation", 3)[..., 2]))
  assert shifts == [(-3, 0), (0, -3), (0, 3), (3, 0)]
  left, right = motions("rotation", 30)[..., :2]
  np.testing.assert_allclose(left @ right, np.eye(2), atol=1e-12)


def test_the_figure_draws_what_was_measured(results):
  figure = FIGURES["equivariance"](results, "Toy")
  assert [axes.get_title() for axes in figure.axes[:3]] == list(equivariance.SIZES)
  units = {"translation": "pixels", "rotation": "degrees", "scaling": "factor"}
  for column, family in enumerate(equivariance.SIZES):
    errors, ratios, presences = figure.axes[column::3]
    sizes = np.array(equivariance.SIZES[family])
    assert presences.get_xlabel() == units[family]
    for axes in (errors, ratios, presences):
      assert axes.get_ylim()[0] == 0
    for i, (kind, present) in enumerate(results["present"].items()):
      error, unmoved, change = (
        np.array([entry[kind][name] for entry in results[family]], float)
        for name in ("pose_error", "pose_unmoved", "presence_change")
      )
      measured, still = errors.lines[2 * i : 2 * i + 2]
      np.testing.assert_array_equal(measured.get_xydata(), np.column_stack([sizes, error]))
      np.testing.assert_array_equal(still.get_xydata(), np.column_stack([sizes, unmoved]))
      assert (measured.get_label(), measured.get_linestyle()) == (kind, "-")
      assert (still.get_label(), still.get_linestyle()) == (f"{kind} that do not move", "--")
      moves = unmoved > 0  # no ratio where nothing moves, nor where no capsule is present
      expected = np.column_stack([sizes[moves], error[moves] / unmoved[moves]])
      np.testing.assert_array_equal(ratios.lines[i].get_xydata(), expected)
      assert len(expected) == (0 if kind == "absent" else len(sizes) - 1)
      curve, level = presences.lines[2 * i : 2 * i + 2]
      np.testing.assert_array_equal(curve.get_xydata(), np.column_stack([sizes, change]))
      assert set(level.get_ydata()) == {present["presence_between_examples"]}
      assert (level.get_label(), level.get_linestyle()) == (f"{kind}, between examples", ":")
    np.testing.assert_array_equal(ratios.lines[-1].get_ydata(), 1)
  ends = ("", " that do not move", ", between examples")
  named = texts(figure.legends[0].get_texts())
  assert sorted(named) == sorted(f"{kind}{end}" for kind in results["present"] for end in ends)


@pytest.mark.parametrize(("sizes", "are_whole"), [((0, 1), True), ((0.5, 1.5), False)])
def test_ticks_are_whole_where_sizes_are(results, sizes, are_whole):
  entries = [results["rotation"][0] | {"size": size} for size in sizes]
  figure = FIGURES["equivariance"]({"present": results["present"], "translation": entries})
  ticks = figure.axes[2].get_xticks()
  assert np.array_equal(ticks, np.round(ticks)) == are_whole


def test_the_command_writes_numbers_and_a_figure(images, monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(equivariance, "SIZES", {"translation": (2,), "rotation": (170,)})
  blobs = labelled("blobs", images, np.zeros(NUM_IMAGES), "a")
  config = toy_config(data__canvas=CANVAS)
  open_for_commands(monkeypatch, system_of("absent", "fixed"), blobs, {0: {}}, config)
  call(monkeypatch, equivariance, tmp_path / "run", tmp_path / "out", "--max_examples=6")
  record, text = written(capsys, tmp_path / "out", "equivariance-run")
  assert (tmp_path / "out" / "equivariance-run.png").is_file()
  assert (record["step"], record["seed"]) == (7, 0)
  assert source_of(record["scored_on"]) == {"dataset": "blobs", "split": "test", "examples": 6}
  assert record["translation"][0]["objects"]["pose_unmoved"] == pytest.approx(2)
  assert record["translation"][0]["parts"]["pose_error"] is None
  assert "| translation 2 | 6 |  |  |  | 0.000 |" in text  # parts, which are absent
  assert "| 2.00 | 2.00 | 1.00 | 0.000 |" in text  # objects
