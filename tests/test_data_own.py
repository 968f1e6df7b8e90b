"""A user's data sets: in memory, and by the dotted path of a function."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from PIL import ExifTags, Image

from configs import constellations
from scae_jax.config import read_settings
from scae_jax.data.dataset import Dataset
from scae_jax.data.digits import load_digits
from scae_jax.errors import RunError
from scae_jax.library.loading import load
from scae_jax.training.build import build
from scae_jax.training.loop import train
from scae_jax.training.run import open_run
from tests.stand_ins import refused, source_of
from tests.test_evaluation_script import quick, run
from tests.toy_system import toy_config

__all__ = ["quick"]  # a fixture: reports without figures


def few_digits() -> Dataset:
  """A few digits under another name."""
  splits = {name: split.take(np.arange(60)) for name, split in load_digits().splits.items()}
  return Dataset("mine", load_digits().class_names, splits)


def config_of(name: str, num_steps: int = 2):
  cadence = ("steps_per_dispatch", "log_every", "eval_every", "checkpoint_every")
  changes = {f"train__{key}": 2 for key in cadence}
  return toy_config(data__name=name, train__num_steps=num_steps, **changes)


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory):
  """A run on data in memory, and the same by the path of the function."""
  folder = tmp_path_factory.mktemp("own")
  train(config_of("mine"), folder / "memory", dataset=few_digits())
  train(config_of(f"{__name__}.few_digits"), folder / "path")
  return folder


def test_data_in_memory_and_by_a_path_train_alike(workdirs):
  in_memory = open_run(workdirs / "memory", dataset=few_digits())
  by_path = open_run(workdirs / "path", dataset=few_digits())
  jax.tree.map(np.testing.assert_array_equal, in_memory.variables, by_path.variables)
  described = [
    json.loads((workdirs / name / "data.json").read_text()) for name in ("memory", "path")
  ]
  assert described[0] == described[1]
  assert described[0]["name"] == "mine"
  # And goes on.
  assert train(config_of("mine", 4), workdirs / "memory", dataset=few_digits()).step == 4


def test_photographs_of_many_sizes_train_and_are_encoded_as_in_training(tmp_path):
  """All are stored on their side; some are grey, some have a palette or transparency."""
  random = np.random.RandomState(0)
  folder, workdir = tmp_path / "photographs", tmp_path / "run"
  for number in range(24):
    size = random.randint(20, 60, 2)
    kind = ("RGB", "L", "RGBA", "P")[number % 4]
    image = Image.fromarray(random.randint(0, 256, (*size, 3)).astype(np.uint8)).convert(kind)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    path = folder / "ab"[number // 4 % 2] / f"{number}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif)
  config = config_of("folder")
  config.data.dir, config.data.cache_dir = str(folder), str(tmp_path / "cache")
  with pytest.raises(RunError, match=r"config\.data\.resize"):
    train(config, workdir)
  config.data.resize, config.data.channels = 16, 1
  train(config, workdir)
  run = open_run(workdir)
  assert isinstance(run.dataset, Dataset)
  assert run.dataset.image_shape == (16, 16, 1)
  path = folder / "a" / "1.png"  # grey, so that it is as it was to all who open it
  upright = np.rot90(np.asarray(Image.open(path)), -1)
  prepared = load(workdir).inputs.check(upright[None], None, resize=True)["image"]
  images = np.concatenate([split.images for split in run.dataset.splits.values()])
  assert (images == prepared).all(axis=(1, 2, 3)).sum() == 1


def test_other_data_than_the_runs_own_are_refused(workdirs):
  with pytest.raises(RunError, match=r"config\.data\.name.*'mine'"):
    open_run(workdirs / "memory")
  test = few_digits().splits["test"]
  other = dataclasses.replace(few_digits(), splits={"train": test, "test": test})
  files = {path: path.stat().st_mtime_ns for path in workdirs.rglob("*")}
  with pytest.raises(RunError, match=r"memory(?s:.*)\n  train: "):
    open_run(workdirs / "memory", dataset=other)
  with pytest.raises(RunError, match=r"memory(?s:.*)\n  train: "):
    train(config_of("mine", 6), workdirs / "memory", dataset=other)
  assert files == {path: path.stat().st_mtime_ns for path in workdirs.rglob("*")}
  with pytest.raises(RunError, match=r"'digits'.*'mine'"):
    build(read_settings(config_of("digits")), few_digits())
  with pytest.raises(RunError, match=r"'mine'.*'digits'"):
    open_run(workdirs / "memory", dataset=load_digits())
  with pytest.raises(RunError, match=r"'constellations'.*'mine'"):
    build(read_settings(constellations.get_config()), few_digits())


def test_a_function_named_by_a_shared_folder_is_not_called(workdirs, capsys):
  path = f"{__name__}.few_digits"
  message = refused(capsys, run, workdirs / "path")
  assert f"'{path}'" in message
  for name in ("path", "memory"):
    run(workdirs / name, f"--source={path}")
    written = json.loads((workdirs / name / "evaluation" / "metrics.json").read_text())
    assert source_of(written["scored_on"]) == {"dataset": "mine", "split": "test", "examples": 60}
  other = "--source=scae_jax.data.digits.load_digits"
  assert "\n  train: " in refused(capsys, run, workdirs / "memory", other)
