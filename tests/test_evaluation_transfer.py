"""evaluate.py --dataset=affnist and the like, on a run of the toy system."""

import json
import pathlib

import pytest

import evaluate
from scae_jax.data import affine
from scae_jax.data.sources import load_dataset
from scae_jax.evaluation import report, scorers
from scae_jax.training.errors import RunError
from scae_jax.training.loop import train
from scae_jax.training.workdir import check_same_run, load_settings
from tests.test_data_affnist import write
from tests.test_evaluation_script import run
from tests.test_training_loop import compilation_cache
from tests.toy_system import toy_config

__all__ = ["compilation_cache"]  # a fixture: what every report runs compiles once


def config():
  return toy_config(train__num_steps=8, evaluation__max_examples=60, data__canvas=40)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> pathlib.Path:
  """A run on embedded digits in affNIST's canvas of 40."""
  folder = tmp_path_factory.mktemp("run")
  train(config(), folder)
  return folder


@pytest.fixture(scope="module")
def official(tmp_path_factory) -> pathlib.Path:
  """A folder with an official file of 60 images: the digits as `affine_digits` has them."""
  folder = tmp_path_factory.mktemp("affnist")
  test = load_dataset("digits").splits["test"]
  images = affine.resample(test.images, affine.draw_affine(test.images, 40, 0).maps, 40)
  write(folder / "test_batches" / "1.mat", images, test.labels)
  return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
  """No figures, a small baseline, and a cache of this test's own."""
  monkeypatch.setattr(report, "save_figures", lambda directory, drawers: None)
  monkeypatch.setattr(scorers, "MAX_PIXEL_EXAMPLES", 60)
  monkeypatch.setenv("SCAE_JAX_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no_tfds"))
  monkeypatch.setattr(evaluate, "keep_compiled", lambda folder: None)


def metrics(workdir, folder):
  return json.loads((workdir / "evaluation" / folder / "metrics.json").read_text())


def test_affine_digits_are_scored_with_clusters_of_the_training_digits(workdir, capsys):
  run(workdir, "--dataset=affine_digits")
  written = metrics(workdir, "affine_digits-test")
  assert written["fitted_on"] == {"dataset": "digits", "split": "train", "examples": 60}
  assert written["scored_on"] == {"dataset": "affine_digits", "split": "test", "examples": 60}
  assert written["notes"][0].startswith("affine_digits: affNIST's distribution of maps, drawn for")
  printed = capsys.readouterr().out
  assert "affine_digits test, 60 examples; fitted on digits train, 60; step 8" in printed
  assert "note: affine_digits: affNIST's distribution" in printed


def test_official_files_give_what_the_same_images_give(workdir, official, capsys):
  run(workdir, "--dataset=affine_digits", "--max_examples=0")
  run(workdir, "--dataset=affnist", f"--affnist_dir={official}", "--max_examples=0")
  drawn, read = metrics(workdir, "affine_digits-test"), metrics(workdir, "affnist-test")
  assert read["scored_on"] == {"dataset": "affnist", "split": "test", "examples": 360}
  for key in ("features", "pixels", "measures"):
    assert read[key] == drawn[key]  # one program, the same bytes
  assert read["notes"][0] == f"official affNIST: 360 images of 1 file(s) in {official}."
  assert "affnist test, 360 examples; fitted on digits train, 1,437" in capsys.readouterr().out


def test_the_folder_may_stand_in_the_config(workdir, official, tmp_path):
  copy = tmp_path / "run"
  copy.mkdir()
  for name in ("checkpoints", "data.json", "metrics.jsonl"):
    (copy / name).symlink_to(workdir / name)
  saved = json.loads((workdir / "config.json").read_text())
  saved["data"]["affnist_dir"] = str(official)
  (copy / "config.json").write_text(json.dumps(saved))
  run(copy, "--dataset=affnist", "--max_examples=20")
  assert metrics(copy, "affnist-test-max20")["scored_on"]["dataset"] == "affnist"


def test_where_files_to_score_on_are_may_change(workdir, tmp_path):
  """It changes no parameter; a saved config without a key is refused by the key's name."""
  saved = json.loads((workdir / "config.json").read_text())
  (tmp_path / "config.json").write_text(json.dumps(saved))
  elsewhere = config()
  elsewhere.data.affnist_dir = "/data/affnist"
  check_same_run(tmp_path, elsewhere)
  del saved["data"]["affnist_dir"]
  (tmp_path / "config.json").write_text(json.dumps(saved))
  with pytest.raises(RunError, match=r"config\.data.*affnist_dir"):
    load_settings(tmp_path)


def test_moved_sets_have_folders_of_their_own(workdir):
  run(workdir, "--dataset=rotated_digits:-20..20", "--max_examples=20")
  run(workdir, "--dataset=translated_digits:3,-2", "--max_examples=20")
  for folder, name in (
    ("rotated_digits_-20..20-test-max20", "rotated_digits:-20..20"),
    ("translated_digits_3_-2-test-max20", "translated_digits:3,-2"),
  ):
    assert metrics(workdir, folder)["scored_on"]["dataset"] == name


def test_figures_fall_with_the_move(workdir):
  """A linear probe on pixels: 0 pixels is the run's own test split, 8 are too many."""
  accuracies = []
  for shift in (0, 8):
    run(workdir, f"--dataset=translated_digits:{shift}", "--max_examples=200")
    name = f"translated_digits_{shift}-test"
    accuracies.append(metrics(workdir, name)["pixels"]["lin_pred"])
  run(workdir, "--max_examples=200")
  assert metrics(workdir, ".")["pixels"]["lin_pred"] == accuracies[0]
  assert accuracies[1] < accuracies[0] - 0.3


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--dataset=rotated_digits"], "does not say how far; expected degrees"),
    (["--dataset=affine_nothing"], "nothing"),
    (["--dataset=affnist", "--affnist_dir=/no/such/folder"], "in '/no/such/folder', got none"),
    (["--dataset=affine_digits", "--split=train"], "no split 'train'; it has test"),
    (["--dataset=affnist"], "'mnist' is not prepared"),
  ],
)
def test_refusals_are_one_message_and_exit_code_2(workdir, capsys, flags, message):
  with pytest.raises(SystemExit) as stopped:
    run(workdir, *flags)
  assert stopped.value.code == 2
  captured = capsys.readouterr()
  assert captured.out == ""
  assert message in captured.err
  assert "Traceback" not in captured.err


def test_a_truncated_file_is_refused(workdir, official, tmp_path, capsys):
  whole = (official / "test_batches" / "1.mat").read_bytes()
  (tmp_path / "1.mat").write_bytes(whole[: len(whole) // 2])
  with pytest.raises(SystemExit) as stopped:
    run(workdir, "--dataset=affnist", f"--affnist_dir={tmp_path}")
  assert stopped.value.code == 2
  assert f"{tmp_path}/1.mat, which cannot be read" in capsys.readouterr().err
