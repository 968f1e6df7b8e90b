"""evaluate.py on a run of the toy system: where it writes, what it scores, how it refuses."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

import evaluate
import explore
from experiments.transfer import read_reports
from scae_jax.data import affine
from scae_jax.data.sources import load_dataset
from scae_jax.evaluation import scores
from scae_jax.training import hosts, loop, reporting
from scae_jax.training import run as run_module
from scae_jax.training.run import open_run
from scae_jax.training.workdir import load_settings
from tests.runs import ROOT, save_images
from tests.stand_ins import refused, source_of
from tests.toy_data import write_affnist
from tests.toy_system import toy_config
from tests.toy_tfds import image_feature, label_feature, text_feature, write_tfds

pytestmark = pytest.mark.usefixtures("built_once")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, one_device_always) -> pathlib.Path:
  """A run with checkpoints of steps 8 and 16, in affNIST's canvas of 40."""
  folder = tmp_path_factory.mktemp("run")
  loop.train(toy_config(train__num_steps=16, evaluation__max_examples=60, data__canvas=40), folder)
  return folder


@pytest.fixture(scope="module")
def official(tmp_path_factory) -> pathlib.Path:
  """A folder with an official file of 360 images: the digits as `affine_digits` has them."""
  folder = tmp_path_factory.mktemp("affnist")
  test = load_dataset("digits").splits["test"]
  images = affine.resample(test.images, affine.draw_affine(test.images, 40, 0)[0], 40)
  write_affnist(folder / "test_batches" / "1.mat", images, test.labels)
  return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path, not_drawn):
  """No figures, a small baseline, and a cache of this test's own."""
  monkeypatch.setattr(scores, "MAX_PIXEL_EXAMPLES", 60)
  monkeypatch.setenv("SCAE_JAX_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no_tfds"))
  monkeypatch.setattr(hosts, "keep_compiled", lambda folder: None)


def run(workdir, *flags):
  """Runs the script's main in this process, so that nothing compiles twice."""
  evaluate.main([f"--workdir={workdir}", *flags])


def metrics(folder):
  return json.loads((folder / "metrics.json").read_text())


def test_the_runs_own_test_split_goes_to_evaluation(workdir, capsys):
  run(workdir)
  written = metrics(workdir / "evaluation")
  assert written["step"] == 16
  assert source_of(written["scored_on"]) == {"dataset": "digits", "split": "test", "examples": 60}
  assert written["provenance"]["workdir"] == str(workdir)
  assert written["provenance"]["config"]["train"]["num_steps"] == 16
  assert set(written["metrics"]) == {"squared_error", "probe_right"}
  printed = capsys.readouterr().out
  assert re.search(r"\b60\b.*\bdigits test\b", printed)
  assert printed.split()[-1] == str(workdir / "evaluation")


def test_two_sets_of_one_name_have_a_report_each(workdir, tmp_path, capsys):
  """Both are called `folder`; a table says where each lies, and its report has its fingerprint."""
  folders = {}
  for name in ("a", "b"):
    images = save_images(tmp_path / name, 10, 40, prefix="")
    if name == "b":
      (images / "0" / "000.png").write_bytes((images / "9" / "009.png").read_bytes())
    run(workdir, "--dataset=folder", f"--scored_dir={images}", "--split=train")
    folder = pathlib.Path(capsys.readouterr().out.split()[-1])
    scored_on = metrics(folder)["scored_on"]
    assert scored_on["path"] == str(images)
    assert folder.name == f"folder-train-{scored_on['fingerprint'][:8]}"
    folders[name] = folder
  assert metrics(folders["a"])["scored_on"]["path"] == str(tmp_path / "a")
  reports, _ = read_reports(workdir)
  assert {f"folder train in {tmp_path / name}" for name in folders} <= set(reports)


NOWHERE = "/no/such/folder"


@pytest.mark.parametrize(
  ("flags", "named"),
  [
    (["--dataset=folder"], "--scored_dir"),
    (["--dataset=folder", f"--scored_dir={NOWHERE}"], "--scored_dir"),
    (["--dataset=mnist", f"--scored_dir={NOWHERE}"], "--scored_dir"),
    (["--dataset=cifar10_corrupted", "--scored_dir=gs://somewhere"], "--scored_dir"),
    (["--dataset=affnist", f"--affnist_dir={NOWHERE}"], "--affnist_dir"),
    (["--scored_dir=/"], "--dataset"),
    (["--max_examples=5"], "--max_examples"),
    (["--max_examples=-1"], "--max_examples"),
    (["--source=no.such.function"], "--data_dir"),
  ],
)
def test_refusals_name_what_the_command_has(workdir, capsys, flags, named):
  stderr = refused(capsys, run, workdir, *flags)
  assert named in stderr
  assert "config." not in stderr.replace("config.json", "")


@pytest.mark.parametrize("main", [evaluate.main, explore.main])
def test_a_runs_own_data_is_named_by_a_flag(workdir, tmp_path, monkeypatch, capsys, main):
  """What no flag sets is a key of the run's config.json."""
  monkeypatch.setattr("scae_jax.page.drawable.check_system", lambda name: None)
  copy = shutil.copytree(workdir, tmp_path / "copy")
  for changes, named in (
    ({"name": "folder", "dir": NOWHERE}, "--data_dir"),
    ({"name": "mnist", "dir": NOWHERE}, "TFDS_DATA_DIR"),
    ({"canvas": 10}, "data.canvas"),
  ):
    config = load_settings(workdir).config.to_dict()
    config["data"].update(changes)
    (copy / "config.json").write_text(json.dumps(config))
    stderr = refused(capsys, main, [f"--workdir={copy}"])
    assert named in stderr
    assert "config." not in stderr.replace("config.json", "")


TEN = {"id": text_feature(), "image": image_feature(("16", "16", "3")), "label": label_feature(10)}
GREY = TEN | {"image": image_feature(("16", "16", "1"))}
LARGE = TEN | {"image": image_feature(("41", "41", "1"))}


@pytest.mark.parametrize(
  ("features", "name", "message"),
  [
    (TEN, "svhn_cropped", "channel"),
    (TEN, "rotated_svhn_cropped:35", "channel"),
    (GREY | {"label": label_feature(3)}, "svhn_cropped", "classes"),
    (GREY | {"label": label_feature(3)}, "affine_svhn_cropped", "classes"),
    (LARGE, "svhn_cropped", "41 x 41"),
  ],
)
def test_what_does_not_fit_is_refused_before_images_are_decoded(
  workdir, tmp_path, monkeypatch, capsys, features, name, message
):
  """Neither those to be scored nor the run's own are loaded."""
  write_tfds(tmp_path / "tfds", features=features)
  loaded = []
  monkeypatch.setattr("scae_jax.data.transfer.load_dataset", lambda *of: loaded.append(of))
  monkeypatch.setattr("scae_jax.training.run.open_run", lambda *of: loaded.append(of))
  assert message in refused(
    capsys, run, workdir, f"--dataset={name}", f"--scored_dir={tmp_path / 'tfds'}"
  )
  assert loaded == []


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--split=validation"], "'validation'"),
    (["--split=train", "--dataset=rotated_digits:5"], "'train'"),
    (["--step=7"], "step 7"),
    (["--max_examples=-1"], "max_examples"),
    (["--dataset=folder", "--scored_dir={images}"], "classes"),
  ],
)
def test_what_cannot_be_asked_is_refused_before_data_are_loaded(
  workdir, tmp_path, monkeypatch, capsys, flags, message
):
  loaded = []
  monkeypatch.setattr("scae_jax.data.transfer.load_dataset", lambda *of: loaded.append(of))
  monkeypatch.setattr("scae_jax.training.run.open_run", lambda *of: loaded.append(of))
  images = save_images(tmp_path / "images", 10, 20)
  assert message in refused(capsys, run, workdir, *(flag.format(images=images) for flag in flags))
  assert loaded == []


@pytest.fixture
def reported(monkeypatch):
  """What reports are asked for, instead of reports."""
  folders = []
  monkeypatch.setattr(reporting, "report_run", lambda run, workdir, **kw: folders.append((run, kw)))
  return folders


def test_best_is_the_checkpoint_of_the_lowest_held_out_loss(workdir, reported):
  texts = (workdir / "metrics.jsonl").read_text().splitlines()
  held_out = [line for line in map(json.loads, texts) if line["split"] == "test"]
  assert [line["step"] for line in held_out] == [8, 16]  # the checkpoints
  best = min(held_out, key=lambda line: line["selection_loss"])["step"]
  for step, expected in ((8, 8), (16, 16), ("latest", 16), ("best", best)):
    run(workdir, f"--step={step}")
    assert (reported[-1][0].step, reported[-1][0].is_latest) == (expected, expected == 16)
  settings = load_settings(workdir, changes={"train.num_steps": 24})
  assert open_run(workdir, "latest", settings).is_latest  # of a run that may go on


def test_flags_choose_what_is_scored(workdir, reported, official, tmp_path):
  """The folder of affNIST may stand in the config: test_training_reporting.py."""
  run(workdir)
  run(workdir, "--split=train", "--max_examples=0")
  run(workdir, "--dataset=folder", f"--scored_dir={save_images(tmp_path / 'images', 10, 40, '')}")
  run(workdir, "--dataset=affine_digits", "--data_dir=moved")
  assert reported[-1][0].config.data.dir == "moved"  # the run's own
  run(workdir, "--dataset=affnist", f"--affnist_dir={official}")
  nothing, of_train, *others = (arguments for _, arguments in reported)
  assert nothing == {"scored": None, "split": None, "max_examples": None}
  assert of_train == {**nothing, "split": "train", "max_examples": 0}
  folder, drawn, read = (arguments["scored"] for arguments in others)
  assert folder.splits["test"].images.shape == (10, 12, 12, 1)
  assert "360 images" in read.notes[0]
  assert str(official) in read.notes[0]
  np.testing.assert_array_equal(read.splits["test"].images, drawn.splits["test"].images)


def test_the_page_comes_before_the_main_report_alone(workdir, monkeypatch):
  calls = []
  monkeypatch.setattr("scae_jax.page.write.look_inside", lambda *_: calls.append("page"))
  monkeypatch.setattr(reporting, "report_run", lambda *_, **options: calls.append("report"))
  for flags, expected in (
    ([], ["page", "report"]),
    (["--step=8"], ["report"]),
    (["--split=test", "--max_examples=60"], ["page", "report"]),
    (["--split=train"], ["report"]),
    (["--max_examples=59"], ["report"]),
    (["--dataset=digits"], ["report"]),
  ):
    run(workdir, *flags)
    assert calls == expected
    calls.clear()


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--step=7"], "[8, 16]"),
    (["--step=last"], "[8, 16], 'latest'"),
    (["--split=validation"], "'validation'"),
    (["--max_examples=5"], "max_examples"),
    (["--dataset=no_such_set"], "no_such_set"),
    (["extra"], "extra"),
    (["--workdir=/no/such/run"], "/no/such/run"),
    (["--workdir="], "--pretrained=NAME"),
    (["--pretrained=no_such"], "'no_such'"),
    (["--dataset=affnist", "--affnist_dir=/no/such/folder"], "'/no/such/folder'"),
    (["--dataset=affine_digits", "--split=train"], "'train'"),
    (["--dataset=affnist"], "'mnist'"),
  ],
)
def test_refusals_are_one_message_and_exit_code_2(workdir, capsys, flags, message):
  stderr = refused(capsys, run, workdir, *flags)
  assert re.match(r"error: |usage: ", stderr)
  assert message in stderr
  assert "Traceback" not in stderr


# What took too little time to be kept when it was compiled, may take more at the second time.
@pytest.mark.filterwarnings("ignore:Error writing persistent compilation cache")
def test_full_disk_is_named(workdir, capsys):
  run(workdir, "--max_examples=30")  # so that all is compiled, and kept
  folder = workdir / "evaluation" / "digits-test-max30"
  before = {path: path.read_bytes() for path in folder.iterdir()}
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
  try:
    stderr = refused(capsys, run, workdir, "--max_examples=30")
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert "File too large" in stderr
  assert str(folder / "clusters.json") in stderr
  assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_system_of_ones_own_must_be_named(workdir, monkeypatch, capsys):
  """Where the program has not imported it."""
  monkeypatch.delitem(sys.modules, "tests.toy_system")
  stderr = refused(capsys, run, workdir)
  assert "'tests.toy_system'" in stderr
  assert "tests.toy_system" not in sys.modules
  run(workdir, "--system=tests.toy_system", "--max_examples=30")


@pytest.mark.slow
def test_the_script_as_a_process(workdir, tmp_path):
  flags = ["--system=tests.toy_system", "--split=train", "--max_examples=20"]
  done = subprocess.run(
    [sys.executable, str(ROOT / "evaluate.py"), f"--workdir={workdir}", *flags],
    env=os.environ
    | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "SCAE_JAX_CACHE": str(tmp_path)},
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert re.search(r"\b20\b.*\bdigits train\b", done.stdout)
  folder = workdir / "evaluation" / "digits-train-max20"
  assert str(folder) in done.stdout.splitlines()[-1]
  assert (folder / "embedding-code.png").is_file()


@pytest.mark.parametrize(("saved", "used"), [("", ""), ("off", "off"), ("shared/compiled", "")])
def test_a_run_without_checkpoints_is_refused_after_the_cache_of_programs_is_ones_own(
  workdir, tmp_path, monkeypatch, capsys, saved, used
):
  """A folder that is shared may have programs in it; JAX reads its folder at the first of them."""
  config = load_settings(workdir).config.to_dict()
  config["train"]["compilation_cache"] = saved
  (tmp_path / "config.json").write_text(json.dumps(config))
  calls = []
  check_step = run_module.check_step
  monkeypatch.setattr(run_module, "check_step", lambda *of: calls.append("open") or check_step(*of))
  monkeypatch.setattr(hosts, "keep_compiled", calls.append)
  assert str(tmp_path) in refused(capsys, run, tmp_path)
  assert calls == [used, "open"]
  assert not (tmp_path / "evaluation").exists()
