"""evaluate.py on a run of the toy system: where it writes, what it scores, how it refuses."""

import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys

import pytest
from absl.testing import flagsaver

import evaluate
from scae_jax.data import affine
from scae_jax.data.sources import load_dataset
from scae_jax.evaluation import report, scores
from scae_jax.training.build import open_run
from scae_jax.training.errors import RunError
from scae_jax.training.loop import train
from scae_jax.training.workdir import check_same_run, load_settings
from tests.toy_data import write_affnist
from tests.toy_system import toy_config

ROOT = pathlib.Path(__file__).resolve().parent.parent


def config():
  return toy_config(train__num_steps=16, evaluation__max_examples=60, data__canvas=40)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> pathlib.Path:
  """A run with checkpoints of steps 8 and 16, in affNIST's canvas of 40."""
  folder = tmp_path_factory.mktemp("run")
  train(config(), folder)
  return folder


@pytest.fixture(scope="module")
def official(tmp_path_factory) -> pathlib.Path:
  """A folder with an official file of 360 images: the digits as `affine_digits` has them."""
  folder = tmp_path_factory.mktemp("affnist")
  test = load_dataset("digits").splits["test"]
  images = affine.resample(test.images, affine.draw_affine(test.images, 40, 0).maps, 40)
  write_affnist(folder / "test_batches" / "1.mat", images, test.labels)
  return folder


@pytest.fixture(scope="module")
def other_digits(tmp_path_factory) -> pathlib.Path:
  """A user's folder with two black images of each digit, smaller than the run's."""
  from PIL import Image

  folder = tmp_path_factory.mktemp("images")
  for split in ("train", "test"):
    for digit in range(10):
      (folder / split / str(digit)).mkdir(parents=True)
      for i in range(2):
        Image.new("L", (12, 12)).save(folder / split / str(digit) / f"{i}.png")
  return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
  """No figures, a small baseline, and a cache of this test's own."""
  monkeypatch.setattr(report, "save_figures", lambda directory, drawers: None)
  monkeypatch.setattr(scores, "MAX_PIXEL_EXAMPLES", 60)
  monkeypatch.setenv("SCAE_JAX_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no_tfds"))
  monkeypatch.setattr(evaluate, "keep_compiled", lambda folder: None)


def run(workdir, *flags):
  """Runs the script's main in this process, so that nothing compiles twice."""
  with flagsaver.flagsaver():
    evaluate.main(evaluate.parse_or_exit(["evaluate.py", f"--workdir={workdir}", *flags]))


def metrics(folder):
  return json.loads((folder / "metrics.json").read_text())


def test_the_runs_own_test_split_goes_to_evaluation(workdir, capsys):
  run(workdir)
  written = metrics(workdir / "evaluation")
  assert written["step"] == 16
  assert written["scored_on"] == {"dataset": "digits", "split": "test", "examples": 60}
  assert written["provenance"]["workdir"] == str(workdir)
  assert written["provenance"]["config"]["train"]["num_steps"] == 16
  assert set(written["measures"]) == {"squared_error", "probe_right"}
  printed = capsys.readouterr().out
  assert "digits test, 60 examples; fitted on digits train, 60; step 16" in printed
  assert printed.splitlines()[-1] == f"written to {workdir / 'evaluation'}"


@pytest.mark.parametrize(
  ("flags", "folder", "step", "split", "examples"),
  [
    (["--step=16"], ".", 16, "test", 60),
    (["--step=8", "--max_examples=30"], "digits-test-step8-max30", 8, "test", 30),
    (["--split=train"], "digits-train", 16, "train", 60),
    (["--max_examples=0"], ".", 16, "test", 360),
  ],
)
def test_flags_choose_what_is_scored_and_where_it_goes(
  workdir, flags, folder, step, split, examples
):
  run(workdir, *flags)
  written = metrics(workdir / "evaluation" / folder)
  assert written["step"] == step
  assert written["scored_on"] == {"dataset": "digits", "split": split, "examples": examples}


def test_a_report_on_fewer_examples_leaves_the_runs_own_as_it_is(workdir):
  run(workdir)
  own = (workdir / "evaluation" / "metrics.json").read_bytes()
  run(workdir, "--max_examples=30")
  assert (workdir / "evaluation" / "metrics.json").read_bytes() == own
  written = metrics(workdir / "evaluation" / "digits-test-max30")
  assert written["scored_on"] == {"dataset": "digits", "split": "test", "examples": 30}


@pytest.mark.parametrize(("which", "expected"), [("latest", True), (16, True), (8, False)])
def test_the_latest_step_of_a_run_that_may_go_on_is_known(workdir, which, expected):
  settings = load_settings(workdir, changes={"train.num_steps": 24})
  assert open_run(workdir, which, settings).is_latest == expected


def test_run_with_a_validation_split_is_judged_there(tmp_path):
  changes = {"data__num_validation": 40, "evaluation__max_examples": 30}
  train(toy_config(train__num_steps=8, **changes), tmp_path)
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert {line["split"] for line in lines} == {"train", "validation"}
  for flags, folder, split in ([], ".", "validation"), (["--split=test"], "digits-test", "test"):
    run(tmp_path, *flags)
    written = metrics(tmp_path / "evaluation" / folder)
    assert written["scored_on"] == {"dataset": "digits", "split": split, "examples": 30}


def test_best_is_the_checkpoint_of_the_lowest_held_out_loss(workdir):
  texts = (workdir / "metrics.jsonl").read_text().splitlines()
  held_out = [line for line in map(json.loads, texts) if line["split"] == "test"]
  assert [line["step"] for line in held_out] == [8, 16]  # the checkpoints
  best = min(held_out, key=lambda line: line["selection_loss"])["step"]
  shutil.rmtree(workdir / "evaluation", ignore_errors=True)
  run(workdir, "--step=best", "--split=train", "--max_examples=30")
  (written,) = (workdir / "evaluation").glob("*/metrics.json")
  assert metrics(written.parent)["step"] == best


def test_another_data_set_is_scored_with_the_runs_own_clusters(workdir, other_digits):
  run(workdir, "--dataset=folder", f"--data_dir={other_digits}")
  written = metrics(workdir / "evaluation" / "folder-test")
  assert written["fitted_on"] == {"dataset": "digits", "split": "train", "examples": 60}
  assert written["scored_on"] == {"dataset": "folder", "split": "test", "examples": 20}
  # All images are black, so that they fall into one cluster.
  assert written["features"]["code"]["lin_match"] == pytest.approx(0.1)


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--step=7"], "no checkpoint of step 7; there are those of [8, 16]"),
    (["--step=last"], "no checkpoint of step last; there are those of [8, 16], 'latest'"),
    (["--split=validation"], "no split 'validation'; it has train, test"),
    (["--max_examples=5"], "at least 10 training examples, got 5"),
    (["--max_examples=many"], "many"),
    (["--dataset=no_such_set"], "no_such_set"),
    (["--no_such_flag=1"], "no_such_flag"),
    (["extra"], "cannot read 'extra'"),
    (["--workdir=/no/such/run"], "/no/such/run holds no run"),
    (["--workdir="], "name a run by --workdir=FOLDER, or parameters by --pretrained=NAME"),
    (["--pretrained=no_such"], "no parameters 'no_such' in "),
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
  assert captured.err.startswith("error: ")
  assert message in captured.err
  assert "Traceback" not in captured.err


def test_full_disk_is_named(workdir, capsys):
  run(workdir, "--max_examples=30")  # so that all is compiled, and kept
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
  try:
    with pytest.raises(SystemExit) as stopped:
      run(workdir, "--max_examples=30")
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert stopped.value.code == 2
  error = capsys.readouterr().err
  assert "File too large" in error
  assert f"{workdir / 'evaluation' / 'digits-test-max30' / 'metrics.json'}'. Make room" in error


def test_a_system_of_ones_own_must_be_named(workdir, monkeypatch, capsys):
  """Where the program has not imported it."""
  monkeypatch.delitem(sys.modules, "tests.toy_system")
  for flags, message in (
    ((), "names the system 'tests.toy_system', which is code outside"),
    (("--system=tests.toy_classifier",), "and --system=tests.toy_classifier is given"),
  ):
    with pytest.raises(SystemExit) as stopped:
      run(workdir, *flags)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
  assert "tests.toy_system" not in sys.modules
  run(workdir, "--system=tests.toy_system", "--max_examples=30")


def test_a_workdir_without_checkpoints_is_refused(workdir, tmp_path, capsys):
  (tmp_path / "config.json").write_text((workdir / "config.json").read_text())
  with pytest.raises(SystemExit) as stopped:
    run(tmp_path)
  assert stopped.value.code == 2
  assert "no checkpoint" in capsys.readouterr().err
  assert not (tmp_path / "evaluation").exists()


def test_affine_digits_are_scored_with_clusters_of_the_training_digits(workdir, capsys):
  run(workdir, "--dataset=affine_digits")
  written = metrics(workdir / "evaluation" / "affine_digits-test")
  assert written["fitted_on"] == {"dataset": "digits", "split": "train", "examples": 60}
  assert written["scored_on"] == {"dataset": "affine_digits", "split": "test", "examples": 60}
  assert written["notes"][0].startswith("affine_digits: affNIST's distribution of maps, drawn for")
  printed = capsys.readouterr().out
  assert "affine_digits test, 60 examples; fitted on digits train, 60; step 16" in printed
  assert "note: affine_digits: affNIST's distribution" in printed


def test_official_files_give_what_the_same_images_give(workdir, official, capsys):
  run(workdir, "--dataset=affine_digits", "--max_examples=0")
  run(workdir, "--dataset=affnist", f"--affnist_dir={official}", "--max_examples=0")
  drawn, read = (
    metrics(workdir / "evaluation" / "affine_digits-test"),
    metrics(workdir / "evaluation" / "affnist-test"),
  )
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
  assert metrics(copy / "evaluation" / "affnist-test-max20")["scored_on"]["dataset"] == "affnist"


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
    assert metrics(workdir / "evaluation" / folder)["scored_on"]["dataset"] == name


def test_figures_fall_with_the_move(workdir):
  """A linear probe on pixels: 8 pixels are too many."""
  run(workdir)
  run(workdir, "--dataset=translated_digits:8")
  own, moved = (
    metrics(workdir / "evaluation" / name)["pixels"]["lin_pred"]
    for name in (".", "translated_digits_8-test")
  )
  assert moved < own - 0.2


def test_a_truncated_file_is_refused(workdir, official, tmp_path, capsys):
  whole = (official / "test_batches" / "1.mat").read_bytes()
  (tmp_path / "1.mat").write_bytes(whole[: len(whole) // 2])
  with pytest.raises(SystemExit) as stopped:
    run(workdir, "--dataset=affnist", f"--affnist_dir={tmp_path}")
  assert stopped.value.code == 2
  assert f"{tmp_path}/1.mat, which cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_as_a_process(workdir, tmp_path):
  def start(*flags):
    return subprocess.run(
      [sys.executable, str(ROOT / "evaluate.py"), f"--workdir={workdir}", *flags],
      env=os.environ
      | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "SCAE_JAX_CACHE": str(tmp_path)},
      capture_output=True,
      text=True,
      timeout=300,
      check=False,
    )

  own = "--system=tests.toy_system"
  done = start(own, "--split=train", "--max_examples=20")
  assert done.returncode == 0, done.stderr
  assert "digits train, 20 examples" in done.stdout
  folder = workdir / "evaluation" / "digits-train-max20"
  assert done.stdout.splitlines()[-1] == f"written to {folder}"
  assert (folder / "embedding-code.png").is_file()
  refused = start("--step=7")
  assert refused.returncode == 2
  assert refused.stdout == ""
  assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(("saved", "used"), [("", ""), ("off", "off"), ("shared/compiled", "")])
def test_cache_of_programs_is_ones_own(workdir, tmp_path, monkeypatch, saved, used):
  """A folder that is shared may have programs in it."""
  config = load_settings(workdir).config.to_dict()
  config["train"]["compilation_cache"] = saved
  (tmp_path / "config.json").write_text(json.dumps(config))
  folders = []
  monkeypatch.setattr(evaluate, "keep_compiled", folders.append)
  with pytest.raises(SystemExit):
    run(tmp_path)  # has no checkpoints
  assert folders == [used]


def test_cache_of_programs_is_named_before_the_run_is_opened(workdir, monkeypatch):
  """JAX reads its folder at the first compilation, and never again."""
  calls = []
  opened = evaluate.open_run

  def open_run(*arguments):
    calls.append("open")
    return opened(*arguments)

  monkeypatch.setattr(evaluate, "open_run", open_run)
  monkeypatch.setattr(evaluate, "keep_compiled", lambda folder: calls.append("cache"))
  run(workdir, "--max_examples=30")
  assert calls == ["cache", "open"]
