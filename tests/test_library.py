"""Trained models on examples of one's own: any number, shape and type of them; changed poses."""

import copy
import dataclasses
import json
import pathlib
import pickle
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scae_jax
from scae_jax.config import load_config, read_settings
from scae_jax.data.image_files import in_form
from scae_jax.data.options import DataOptions
from scae_jax.data.sources import load_dataset
from scae_jax.evaluation.clusters import Clusters, clusters_json, read_clusters
from scae_jax.evaluation.encode import encode_batch
from scae_jax.files import write_whole
from scae_jax.library.inputs import ImageInput
from scae_jax.math import geometry, mixtures
from scae_jax.training.run import PRETRAINED
from tests.toy_data import random_images
from tests.toy_system import toy_config


@pytest.fixture(scope="module")
def digits() -> scae_jax.Model:
  """The shipped digits."""
  return scae_jax.load("digits", batch_size=4)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
  """Ten test digits, uint8 [10, 16, 16]."""
  return load_dataset("digits").splits["test"].images[:10, ..., 0]


@pytest.fixture(scope="module")
def encoding(digits, images) -> scae_jax.Encoding:
  return digits.encode(images)


def test_any_number_of_images_by_one_program(digits, images, encoding):
  """Each is encoded by itself, whatever is in its batch; nothing compiles again."""
  compiled = encode_batch._cache_size()
  for count in (0, 1, 4, 9):
    chex.assert_trees_all_equal(digits.encode(images[:count]), encoding[:count])
    assert len(digits.encode(images[:count])) == count
  assert encode_batch._cache_size() == compiled
  assert len(encoding[3]) == 1
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(encoding))


@pytest.mark.parametrize(
  "change",
  [
    lambda images: images[..., None],
    lambda images: images / 255,
    lambda images: jax.numpy.asarray(images, jax.numpy.float32) / 255,
    lambda images: np.pad(images, ((0, 0), (2, 2), (2, 2))),
  ],
  ids=["channel axis", "float64", "jax", "on the canvas"],
)
def test_images_of_other_types_and_shapes(digits, images, encoding, change):
  chex.assert_trees_all_close(digits.encode(change(images)), encoding, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda images: np.zeros((2, 28, 28)), "28x28.*20x20.*16x16"),
    (lambda images: images[0], r"\[n, h, w\] or \[n, h, w, 1\].*\[16, 16\]"),
    (lambda images: np.zeros((2, 16, 16, 3)), r"\[2, 16, 16, 3\]"),
    (lambda images: images[0, :, :, None], r"\[16, 16, 1\]"),
    (lambda images: images.astype(np.float32), r"\[0, 1\].* 255\b"),
    (lambda images: np.full((1, 16, 16), np.nan), r"\[0, 1\]"),
    (lambda images: images.astype(np.int64), "uint8 or float.*int64"),
  ],
)
def test_images_that_do_not_fit_are_one_line(digits, images, change, message):
  with pytest.raises(ValueError, match=message) as error:
    digits.encode(change(images))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda encoding: {"object_poses": encoding.object_poses[:, :23]}, r"object_poses.*\[n, 24,"),
    (lambda encoding: {"object_presence": encoding.object_presence * np.nan}, "object_presence"),
    (lambda encoding: {"object_presence": 0.5}, r"object_presence.*\[\]"),
    (lambda encoding: {"object_poses": None}, "encode"),
    (lambda encoding: {"object_poses": encoding.object_poses[:3]}, r"\[3, 10\]"),
  ],
)
def test_changes_that_cannot_be_drawn_are_one_line(digits, encoding, change, message):
  with pytest.raises(ValueError, match=message) as error:
    digits.draw(encoding.replace(**change(encoding)))
  assert "\n" not in str(error.value)


def test_an_encoding_shows_its_fields_and_can_be_switched_off(digits, encoding):
  assert repr(encoding).startswith(
    "Encoding(object_presence=[10, 24], object_poses=[10, 24, 2, 3], "
  )
  assert (encoding.part_poses.shape, encoding.part_presence.shape) == ((10, 16, 2, 3), (10, 16))
  assert encoding.scores is None
  listed = encoding.replace(object_poses=encoding.object_poses.tolist())
  chex.assert_trees_all_equal(digits.draw(listed), digits.draw(encoding))
  off = digits.draw(encoding.replace(object_presence=np.zeros_like(encoding.object_presence)))
  assert off.std() < 1e-3 < digits.draw(encoding).std()
  parts_off = encoding.replace(part_presence=np.zeros_like(encoding.part_presence))
  chex.assert_trees_all_close(digits.draw(parts_off, "parts"), off, rtol=0, atol=1e-4)


def test_images_of_another_size_are_scaled(digits, images, encoding):
  """Digits of twice the size come back to about what they were."""
  large = images.repeat(2, axis=1).repeat(2, axis=2)
  again = digits.encode(large, resize=True)
  assert np.abs(again.object_presence - encoding.object_presence).mean() < 0.02
  chex.assert_trees_all_equal(digits.encode(images, resize=True), encoding)


def test_images_of_many_sizes_become_what_those_of_training_became(digits):
  """As the run's data section says; floats to a rounding of uint8, and grey by luminance."""
  changes = {"data__canvas": 16, "data__resize": 16, "data__channels": 1}
  images = [random_images(1, 24, 40)[0], random_images(1, 9, 9)[0]]
  for fill in ("crop", "pad"):
    options = read_settings(toy_config(**changes, data__resize_fill=fill)).data
    assert isinstance(options, DataOptions)
    prepare = ImageInput(options, 1, (16, 16))
    expected = np.concatenate([in_form(image[None], options.form) for image in images])
    batch = prepare.check(images, None, resize=True)
    np.testing.assert_array_equal(batch["image"], expected)
    alone = prepare.check(images[0][None], None, resize=True)
    np.testing.assert_array_equal(alone["image"], expected[:1])
    floats = [image / 255 for image in images]
    near = prepare.check(floats, None, resize=True)
    np.testing.assert_allclose(near["image"], expected / 255, atol=1.1 / 255)
    mixed = prepare.check([images[0], floats[1]], None, resize=True)
    np.testing.assert_allclose(mixed["image"], expected / 255, atol=1.1 / 255)
    with pytest.raises(ValueError, match=r"\b255\b"):
      prepare.check(np.float32(images[0])[None], None, resize=True)
  ragged = [np.zeros((28, 28), np.uint8), np.zeros((16, 16), np.uint8)]
  assert digits.encode(ragged, resize=True).object_presence.shape == (2, 24)
  with pytest.raises(ValueError, match="resize=True"):
    digits.encode(ragged)


def test_without_data_resize_images_are_stretched(digits):
  """By `jax.image.resize`, to its rounding."""
  images = random_images(2, 28, 40, 1)
  expected = jax.image.resize(images / np.float32(255), (2, 16, 16, 1), "linear")
  prepared = digits.inputs.check(images, None, resize=True)["image"]
  np.testing.assert_allclose(prepared, expected, atol=1e-6)


def test_images_are_prepared_as_evaluation_prepares_them():
  """Cropped in the middle, normalised by the whole image."""
  options = read_settings(toy_config(data__canvas=12, data__crop=10, data__normalize=True)).data
  prepare = ImageInput(options, 1, (16, 16))
  with pytest.raises(ValueError, match=r"14x14.*12x12"):
    prepare.check(np.zeros((3, 14, 14, 1), np.uint8), None, resize=False)
  images = np.random.RandomState(0).randint(0, 255, (3, 16, 16, 1)).astype(np.uint8)
  arrays, rows = prepare.check(images, None, resize=False), np.arange(3)
  batch = prepare.batch(arrays, rows)
  whole = images.reshape(3, -1) / 255
  mean, std = whole.mean(axis=1), whole.std(axis=1)
  middle = np.pad(images[:, 3:13, 3:13] / 255, ((0, 0), (1, 1), (1, 1), (0, 0)))
  expected = (middle - mean[:, None, None, None]) / std[:, None, None, None]
  np.testing.assert_allclose(batch["image"], expected, atol=1e-5)
  floats = prepare.batch(prepare.check(images / 255, None, resize=False), rows)
  chex.assert_trees_all_close(floats, batch, rtol=0, atol=1e-5)
  half = prepare.check(np.asarray(images / 255, jnp.bfloat16), None, resize=False)
  chex.assert_trees_all_close(prepare.batch(half, rows), batch, rtol=0, atol=0.1)


def on_canvas(images):
  """A batch of digits [n, 16, 16, 1] in the middle of 20 x 20 pixels; labels mean nothing."""
  placed = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))).astype(np.float32) / np.float32(255)
  return {"image": jnp.asarray(placed), "label": jnp.zeros(len(images), jnp.int32)}


def test_pictures_are_of_what_the_model_says(digits, images, encoding):
  """By parts the model's own reconstruction; by objects that of parts at their winners' votes."""
  apply = jax.jit(
    lambda variables, batch: digits.system.module.apply(variables, batch, train=False)
  )
  output = apply(digits.variables, on_canvas(images[..., None]))
  expected = jax.vmap(mixtures.mode)(output.reconstruction.mixture)
  np.testing.assert_allclose(digits.draw(encoding, "parts"), expected, atol=1e-5)

  rows, m = np.arange(10)[:, None], np.arange(16)
  winner = np.asarray(output.routing.winner)
  voted = encoding.replace(
    part_poses=np.asarray(output.objects.votes)[rows, winner, m].reshape(10, 16, 2, 3),
    part_presence=np.asarray(output.objects.vote_presence)[rows, winner, m],
  )
  np.testing.assert_allclose(digits.draw(encoding), digits.draw(voted, "parts"), atol=1e-5)
  alone = voted.replace(part_presence=voted.part_presence * (winner == 3))
  np.testing.assert_allclose(digits.draw(encoding, only=3), digits.draw(alone, "parts"), atol=1e-5)
  # Nothing is left of absent parts, though alphas of 60 outweigh log(1e-16); above 1 is 1.
  variables = jax.tree_util.tree_map_with_path(
    lambda path, x: x + 60 * ("alphas" in str(path)), digits.variables
  )
  strong = dataclasses.replace(digits, variables=variables)
  presences = (0 * winner, np.sign(winner), winner)
  pictures = [
    strong.draw(encoding.replace(part_presence=presence), "parts") for presence in presences
  ]
  assert [np.ptp(picture) > 0.5 for picture in pictures] == [False, True, True]
  np.testing.assert_array_equal(pictures[1], pictures[2])


def test_parts_follow_their_object(digits, encoding):
  """Moving all objects down by two pixels moves the picture; a turned one changes its own alone."""
  shift = 2 * 2 / 19  # pixels of the canvas, whose corners are at -1 and 1
  poses = encoding.object_poses.copy()
  poses[:, :, 1, 2] += shift
  still, moved = digits.draw(encoding), digits.draw(encoding.replace(object_poses=poses))
  np.testing.assert_allclose(moved[:, 4:-2], still[:, 2:-4], atol=2e-3)

  turned = encoding.object_poses.copy()
  k = int(np.bincount(encoding.details["winner"][0]).argmax())
  turn = np.asarray(geometry.rotation(jnp.float32(40)))
  turned[:, k, :, :2] = turn[:, :2] @ turned[:, k, :, :2]
  changed = encoding.replace(object_poses=turned)
  assert np.abs(digits.draw(changed, only=k) - digits.draw(encoding, only=k))[0].max() > 0.2
  other = (k + 1) % 24
  chex.assert_trees_all_equal(digits.draw(changed, only=other), digits.draw(encoding, only=other))
  chex.assert_trees_all_equal(digits.draw(changed, "parts"), digits.draw(encoding, "parts"))


def test_what_cannot_be_drawn(digits, encoding):
  with pytest.raises(ValueError, match=r"objects, parts.*'pixels'"):
    digits.draw(encoding, by="pixels")
  for number in (24, -1):
    with pytest.raises(ValueError, match=f"23.* {number}"):
      digits.draw(encoding, only=number)


def test_labels_are_those_of_the_report(digits):
  """LIN-MATCH of the record, by both kinds of features; the better on training images is used."""
  test = load_dataset("digits").splits["test"]
  source = json.loads((PRETRAINED / "digits" / "source.json").read_text())
  figures = source["figures"]["digits test, 360"]
  labels = {by: digits.predict(test.images, by=by) for by in ("prior", "posterior")}
  for by, predicted in labels.items():
    assert 100 * np.mean(predicted == test.labels) == pytest.approx(figures[f"LIN-MATCH, {by}"])
  differ = np.flatnonzero(labels["prior"] != labels["posterior"])[:4]
  first = next(iter(digits.clusters))
  chex.assert_trees_all_equal(digits.predict(test.images[differ]), labels[first][differ])
  accuracies = [clusters.train_accuracy for clusters in digits.clusters.values()]
  assert accuracies == sorted(accuracies, reverse=True)
  with pytest.raises(ValueError, match=r"by .*'parts'"):
    digits.predict(test.images[:1], by="parts")


def test_clusters_come_back(tmp_path):
  clusters = {"prior": Clusters(np.float32([[0.1, 1], [2, 3]]), np.int32([4, 5]), 0.5)}
  (tmp_path / "clusters.json").write_bytes(clusters_json(clusters, 3, 1))
  (again,) = read_clusters(tmp_path / "clusters.json", 3, 1).values()
  chex.assert_trees_all_equal(again.centres, clusters["prior"].centres)
  assert again.predict(np.float32([[2, 2], [0, 0]])).tolist() == [5, 4]
  assert read_clusters(tmp_path / "clusters.json", 4, 1) == {}
  (tmp_path / "clusters.json").write_text('{"step": 3, "seed": 1, "clusters": {"prior": {}}}')
  with pytest.raises(ValueError, match=r"clusters\.json"):
    read_clusters(tmp_path / "clusters.json", 3, 1)


@pytest.mark.usefixtures("one_device")
def test_workdir_of_ones_own(tmp_path, images):
  """Trained, opened without its data set; labels once it was evaluated."""
  config = toy_config(train__num_steps=8, train__seeds=2)
  run = scae_jax.train(config, tmp_path / "run")
  model = scae_jax.load(str(tmp_path / "run"), seed=1, batch_size=4)
  assert (model.step, model.seed, model.class_names[3]) == (8, 1, "3")
  chex.assert_trees_all_equal(model.variables, run.variables[1])
  assert model.encode(images).features["code"].shape == (10, 8)
  with pytest.raises(ValueError, match=r"evaluate\.py"):
    model.predict(images)
  with pytest.raises(ValueError, match=r"'tests.toy_system'.*images"):
    model.draw(model.encode(images))
  with pytest.raises(ValueError, match="refine_steps"):
    model.encode(images, refine_steps=3)
  for folder, label in (("a-max2", 6), ("seed-1", 7), ("z", 8)):
    clusters = {"code": Clusters(np.zeros((1, 8), np.float32), np.int32([label]), 0.5)}
    path = tmp_path / "run" / "evaluation" / folder / "clusters.json"
    write_whole(path, clusters_json(clusters, 8, 1))
  again = scae_jax.load(tmp_path / "run", seed=1, batch_size=4)
  assert again.predict(images).tolist() == [7] * 10
  with pytest.raises(scae_jax.RunError, match=r"seeds \[0, 1\].* 5\b"):
    scae_jax.load(tmp_path / "run", seed=5)


def test_models_that_are_not_there(tmp_path):
  with pytest.raises(scae_jax.RunError, match=r"'mnits'.*'digits', 'mnist', 'mnist-official'"):
    scae_jax.load("mnits")
  shutil.copytree(PRETRAINED / "digits", tmp_path / "own")
  with pytest.raises(scae_jax.RunError, match="step 15000"):
    scae_jax.load(tmp_path / "own", step=3)
  assert scae_jax.load(pathlib.Path("digits"), step="15000").step == 15_000
  with pytest.raises(scae_jax.RunError, match=r"batch_size.* 0"):
    scae_jax.load("digits", batch_size=0)
  (tmp_path / "own" / "data.json").unlink()
  with pytest.raises(scae_jax.RunError, match=r"data\.json"):
    scae_jax.load(tmp_path / "own")


def test_shipped_configs_have_their_names_anywhere(tmp_path, monkeypatch):
  """From another folder too; a file of one's own of that path comes first."""
  monkeypatch.chdir(tmp_path)
  assert load_config("configs/fashion_mnist.py").data.name == "fashion_mnist"
  (tmp_path / "configs").mkdir()
  config_file = (
    "from configs import digits\n\n\ndef get_config(preset=''):\n  return digits.get_config()\n"
  )
  (tmp_path / "configs" / "mnist.py").write_text(config_file)
  assert load_config("configs/mnist.py").data.name == "digits"
  with pytest.raises(scae_jax.RunError, match=r"configs/none\.py"):
    load_config("configs/none.py")


@pytest.mark.parametrize(
  "twin", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_of_a_model_find_the_same(digits, images, encoding, twin):
  chex.assert_trees_all_equal(twin(digits).encode(images), encoding)
  assert twin(digits).predict(images).tolist() == digits.predict(images).tolist()
