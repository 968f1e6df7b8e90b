"""Configs are built, or refused before training."""

import dataclasses
import functools

import jax
import joblib
import numpy as np
import pytest

from scae_jax.config import read_settings
from scae_jax.errors import RunError
from scae_jax.files import write_json
from scae_jax.models.system import Encoding
from scae_jax.training import hosts, step
from scae_jax.training.build import build, check_system, systems
from scae_jax.training.loop import train
from scae_jax.training.workdir import check_same_data, describe_data, read_image_facts, read_splits
from tests.toy_classifier import classifier_config
from tests.toy_data import dataset_of, random_images
from tests.toy_system import make_system, toy_config, toy_data

OVERLAY = {"data__overlay": True}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"data__canvas": 15}, r"config\.data\.canvas.*'digits'.* 16 .* 15\b"),
    ({"data__name": "no_such_set"}, r"config\.data\.name.*'no_such_set'"),
    ({"evaluation__max_examples": 3}, r"config\.evaluation\.max_examples.* 3\b.* 10\b"),
    ({"model__num_features": 0}, r"num_features.* 1\b.* 0\b"),
    ({"train__batch_size": 15, "data__two_views": True}, r"train\.batch_size.*two_views"),
    ({"data__crop": 17}, r"config\.data\.crop.*'digits'.*16x16.* 17\b"),
    ({"data__canvas": 20, "data__overlay": True}, r"config\.data\.overlay.*'tests\.toy_system'"),
    # Half of the images would be black.
    ({"data__max_shift": 10}, r"data\.max_shift.*config\.data\.canvas.* 18\b"),
    ({"data__random_place": True}, r"data\.max_shift.* 0 .*data\.random_place.* 1\b"),
    ({"data__crop": 1}, r"config\.data\.crop.* 0 .* 8 .* 18\b"),
    ({"data__max_rotation": 181.0}, r"data\.max_rotation.* 180\b.* 181\.0"),
    ({"data__brightness": 1.5}, r"config\.data\.brightness.* 1\b.* 1\.5"),
    (OVERLAY | {"data__normalize": True}, r"data\.normalize.*False.*overlay.*True"),
    (OVERLAY | {"data__crop": 8}, r"data\.crop.* 0 .*config\.data\.overlay.* 8\b"),
    (OVERLAY | {"data__contrast": 0.2}, r"data\.contrast.*config\.data\.overlay"),
    (OVERLAY | {"data__two_views": True}, r"data\.two_views.*config\.data\.overlay"),
    (OVERLAY | {"data__max_rotation": 9.0}, r"data\.max_rotation.*config\.data\.overlay"),
    (
      OVERLAY | {"data__random_place": True, "data__max_shift": 0},
      r"data\.random_place.*config\.data\.overlay",
    ),
    (OVERLAY | {"data__brightness": 0.1}, r"data\.brightness.*config\.data\.overlay"),
    ({"optimizer__decay_steps": 0}, r"config\.optimizer\.decay_steps.* 1\b"),
    ({"optimizer__momentum": 1.0}, r"config\.optimizer\.momentum.* 0\.999999"),
    ({"optimizer__name": "adam", "optimizer__epsilon": 0.0}, r"optimizer\.epsilon.* 0\b.*'adam'"),
    # Trained without an update.
    ({"optimizer__clip_norm": 1e-60}, r"config\.optimizer\.clip_norm.* 1e-06"),
  ],
)
def test_configs_that_do_not_fit_are_refused_before_training(changes, message):
  with pytest.raises(RunError, match=message):
    build(read_settings(toy_config(**changes)))


def test_saved_image_facts_are_those_of_training(tmp_path):
  settings = read_settings(toy_config(data__two_views=True))
  _, dataset, feed = build(settings)
  write_json(tmp_path / "data.json", describe_data(dataset))
  spec, _, side = read_image_facts(tmp_path, settings.data)
  assert spec == feed.spec
  assert feed.spec.two_views
  assert side == (16, 16)
  settings = read_settings(toy_config(data__crop=12))
  described = describe_data(build(settings)[1])
  write_json(tmp_path / "data.json", described)
  assert read_image_facts(tmp_path, settings.data)[2] == (16, 16)  # before it is cropped
  check_same_data(tmp_path, described)
  assert read_splits(tmp_path) == ("train", "test")
  write_json(tmp_path / "data.json", {**described, "cropped_from": "large"})
  with pytest.raises(RunError, match=r"data\.json"):
    read_image_facts(tmp_path, settings.data)
  older = {key: value for key, value in described.items() if key != "cropped_from"}
  write_json(tmp_path / "data.json", older)
  check_same_data(tmp_path, described)


def test_keys_of_augmentation_reach_the_batches():
  data = {"max_rotation": 10.0, "crop": 12, "brightness": 0.1, "contrast": 0.2, "canvas": 14}
  _, dataset, feed = build(read_settings(toy_config(**{f"data__{k}": data[k] for k in data})))
  assert dataset.image_shape == (12, 12, 1)  # what evaluation reads
  assert feed.train["image"].shape[1:] == (16, 16, 1)
  assert feed.heldout["image"].shape[1:] == (12, 12, 1)
  assert isinstance(feed.training_batch, functools.partial)
  options = dataclasses.asdict(feed.training_batch.keywords["options"])
  assert {**data, "max_shift": 1}.items() <= options.items()


def test_images_of_one_class_are_refused():
  """A classifier would be right about all of them."""
  data = dataset_of(random_images(10, 16, 16, 1), labels=np.zeros(10))
  for config in (toy_config, classifier_config):
    with pytest.raises(RunError, match=r"config\.data\.name.*'toy'"):
      build(read_settings(config(data__name="toy")), data)


@pytest.mark.parametrize(
  "changes",
  [
    {"train__batch_size": 10**8},
    {"train__seeds": 60_000},
    {"data__canvas": 1_000, "train__batch_size": 800},
    {"model__num_features": 10**9},
  ],
)
def test_a_step_that_exceeds_the_memory_is_refused(tmp_path, monkeypatch, changes):
  """On a device of 1 GB. Nothing is written, so that a smaller run can take the folder."""
  monkeypatch.setattr(step, "device_memory", lambda: 10**9)
  with pytest.raises(RunError, match=r"\d [GT]B.* 1\.0 GB"):
    train(toy_config(**changes), tmp_path)
  assert not (tmp_path / "config.json").exists()


def test_unknown_systems_and_weights_are_named():
  config = toy_config().unlock()
  for name in ("nothing", "no_package.system", "tests.conftest"):
    config.system = name
    with pytest.raises(RunError, match=rf"'{name}'.*scae_jax\.models.*\["):
      build(read_settings(config))
  assert "system" not in systems()
  config = toy_config().unlock()
  config.loss.typo = 1.0
  with pytest.raises(RunError, match=r"config\.loss\.weights.*\['typo'\]"):
    build(read_settings(config))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (lambda code: {"probe_features": {"flat": code[:, 0]}}, r"'flat'.*\(4,\)"),
    (lambda code: {"probe_features": {"few": code[:2]}}, r"'few'.*\(2, 3\)"),
    (lambda code: {"features": {"code": code}, "probe_features": {"code": -code}}, r"\['code'\]"),
    (lambda code: {"scores": code}, r"scores.*4, 10\].*\(4, 3\)"),
    (lambda code: {"part_poses": code[:2, :, None, None]}, r"part_poses.*\(2, 3\)"),
    (lambda code: {"object_poses": code[:, :, None, None]}, r"object_presence.*4, 3\].*\(\)"),
  ],
)
def test_wrong_shapes_and_names_of_a_systems_outputs_are_refused(changes, message):
  model = {"num_features": 3, "noise_scale": 0.0, "nan_below": 0.0}
  data = toy_data(side=4)
  system = make_system(model, dict(toy_config().loss), data)

  def check(encoding):
    return check_system(dataclasses.replace(system, encoding=encoding), data, 4)

  shapes = check(lambda out: Encoding(scores=out.logits, probe_features={"logits": out.logits}))
  assert shapes.scores.shape == (4, 10)
  with pytest.raises(ValueError, match=message):
    check(lambda out: Encoding(**changes(out.code)))


@pytest.mark.parametrize(
  ("cores", "batch_size", "views", "devices"),
  [(2, 64, 1, 2), (6, 64, 1, 4), (64, 64, 1, 8), (4, 7, 1, 1), (4, 36, 2, 3), (2, 17, 2, 1)],
)
def test_cores_are_devices_as_far_as_the_batch_divides(
  monkeypatch, cores, batch_size, views, devices
):
  updates = {}
  monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
  monkeypatch.setattr(hosts.jax.config, "update", updates.__setitem__)
  hosts.use_all_cores(batch_size, views)
  assert updates == {}  # XLA_FLAGS says how many
  monkeypatch.setenv("XLA_FLAGS", "")
  hosts.use_all_cores(batch_size, views)
  assert updates == {"jax_num_cpu_devices": devices}


def test_a_process_that_has_used_jax_keeps_its_devices(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "")
  hosts.use_all_cores(64, 1)
  assert len(jax.devices()) == 4
