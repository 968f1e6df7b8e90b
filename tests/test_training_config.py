"""The command line, saved configs, and the keys that a resumed run may change."""

import codecs
import errno
import json
import pathlib
import re

import numpy as np
import pytest

from scae_jax.config import describe, differences, parse_command_line, read_settings
from scae_jax.data.dataset import Dataset, Split
from scae_jax.errors import RunError, as_run_errors
from scae_jax.sections import Processes
from scae_jax.training import workdir as workdirs
from scae_jax.training.build import build
from scae_jax.training.log import read_lines
from tests.toy_data import random_images
from tests.toy_system import toy_config


def parse(*arguments: str, default_config="toy.py"):
  return parse_command_line(arguments, default_config=default_config)


def test_file_preset_and_processes_are_named_on_the_command_line(home):
  command = parse()
  assert command.settings.config.to_dict() == toy_config().to_dict()
  assert command.workdir == pathlib.Path("runs/toy")
  command = parse(f"--config={home / 'toy.py'}:long", default_config="missing.py")
  assert command.settings.train.num_steps == 480
  assert command.workdir == pathlib.Path("runs/toy-long")
  text = describe(command)
  assert "  --config.train.num_steps=480\n" in text
  assert "  --config.data.name='digits'\n" in text
  assert command.processes is None
  command = parse("--coordinator=host:12", "--num_processes=3", "--process_id=2")
  assert command.processes == Processes("host:12", 3, 2)
  assert parse("--distributed").processes == Processes("", 0, 0)
  with pytest.raises(RunError, match=r"--process_id.*--coordinator=host:port"):
    parse("--process_id=1")


@pytest.mark.parametrize("separator", ["=", " "])
@pytest.mark.usefixtures("home")
def test_overrides_have_the_types_of_the_config(separator):
  overrides = {
    "train.num_steps": "20",
    "optimizer.learning_rate": "1",
    "data.name": "mnist",
    "train.tensorboard": "true",
    "loss.image": "2.5",
  }
  flags = []
  for key, value in overrides.items():
    if separator == "=":
      flags.append(f"--config.{key}={value}")
    elif value == "true":
      flags.append(f"--config.{key}")
    else:
      flags += [f"--config.{key}", value]
  # The overrides come before the file that they override.
  flags += ["--workdir=/tmp/somewhere", "--config=toy.py"]
  command = parse(*flags, default_config="missing.py")
  expected = toy_config(
    train__num_steps=20,
    optimizer__learning_rate=1.0,
    data__name="mnist",
    train__tensorboard=True,
    loss__image=2.5,
  )
  assert differences(expected, command.settings.config) == {}
  assert isinstance(command.settings.config.optimizer.learning_rate, float)
  assert command.workdir == pathlib.Path("/tmp/somewhere")


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--config.trian.num_steps=3", r"'trian\.num_steps'.*\['data', 'eval"),
    ("--config.train.seed.x=3", r"config\.train\.seed\b"),
    ("--config.train=3", r"config\.train\b.*\['batch_size'"),
    ("--config.train.num_steps=1.5", r"num_steps=1\.5.*config\.train\.num_steps.*\bint\b"),
    ("--config.optimizer.decay=x", r"config\.optimizer\.decay\b.*\bfloat\b"),
    ("--config.train.tensorboard=maybe", r"config\.train\.tensorboard.*\bbool\b"),
    ("--config.train.seeds=0", r"train\.seeds.* 65,536\b.* 0\b"),
    ("--config.train.seed=2147483648", r"train\.seed\b.*train\.seeds"),
    ("--steps=3", "steps.*--config=FILE"),
    ("num_steps=3", "'num_steps=3'.*--config=FILE"),
    ("--config=nowhere.py", r"'nowhere\.py'"),
    ("--config=no:where.py:preset", r"'no:where\.py'"),
    ("--workdir=", "--workdir"),  # of a variable of the shell that is not set
  ],
)
@pytest.mark.usefixtures("home")
def test_wrong_command_lines_name_what_is_valid(argument, message):
  with pytest.raises(RunError, match=message) as info:
    parse(argument)
  assert info.value.exit_code == 2


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("def get_config(:", "SyntaxError"),
    ("x = 1", "get_config"),
    ("def get_config(preset=''):\n  return {'a': 1}", "ConfigDict.*{'a': 1}"),
    ("def get_config(preset=''):\n  raise ValueError('a, b')", "ValueError: a, b"),
    ("raise SystemExit(3)", "SystemExit: 3"),
    ("from . import other", r"ImportError.*\bPYTHONPATH=/"),
    ("import not_there_at_all", r"ModuleNotFoundError.*\bPYTHONPATH=/"),
  ],
)
def test_broken_config_files_are_explained(tmp_path, text, message):
  (tmp_path / "broken.py").write_text(text)
  with pytest.raises(RunError, match=message):
    parse(default_config=str(tmp_path / "broken.py"))


def test_an_unknown_flag_is_answered_with_the_form_of_known_ones(home):
  with pytest.raises(RunError, match=r"'lr'.*--config\.SECTION\.KEY"):
    parse("--config.train.num_steps=3", "--lr=3")


def test_the_path_of_a_config_may_have_colons(home):
  folder = home / "12:30 o'clock"
  folder.mkdir()
  (home / "toy.py").rename(folder / "toy.py")
  command = parse(f"--config={folder / 'toy.py'}:long")
  assert command.settings.train.num_steps == 480
  assert command.workdir == pathlib.Path("runs/toy-long")


@pytest.mark.parametrize("name", ["[x]", "a*", "b?", "c\udcff"])
def test_folders_below_which_no_checkpoint_can_be_saved_are_refused(tmp_path, name):
  for workdir in (tmp_path / name, tmp_path / name / "run"):
    with pytest.raises(RunError, match="workdir"):
      workdirs.check_same_run(workdir, toy_config())


def test_byte_order_marks_and_crlf_are_no_damage(tmp_path, caplog):
  write_workdir(tmp_path)
  (tmp_path / "metrics.jsonl").write_text('{"step": 4, "split": "train", "timing": {}}\n')
  for name in ("config.json", "data.json", "jax.json", "metrics.jsonl"):
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + content.replace(b"\n", b"\r\n"))
  workdirs.check_same_run(tmp_path, toy_config())
  workdirs.check_same_data(tmp_path, DATA)
  assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [4]
  assert not caplog.records


def test_a_loss_term_without_a_weight_gets_one_on_the_command_line():
  """Whether there is such a term, only the system knows."""
  command = parse("--config.loss.weights.wide=0.5", default_config="configs/digits.py")
  assert command.settings.config.loss.weights.wide == 0.5
  with pytest.raises(RunError, match=r"loss\.weights.*\['wide'\].*posterior_within"):
    build(command.settings)
  with pytest.raises(RunError, match=r"'loss\.typo\.wide'"):
    parse("--config.loss.typo.wide=0.5", default_config="configs/digits.py")


def test_a_config_has_exactly_its_sections():
  """The keys of each section: test_bounds.py."""
  changed = toy_config().unlock()
  del changed["loss"]
  changed.other = 1
  with pytest.raises(RunError, match=r"\['other'\].*\['loss'\]"):
    read_settings(changed)


def test_saved_config_comes_back_with_its_tuples(tmp_path):
  config = toy_config().unlock()
  config.model.strides = (2, (1, 3))
  restored = workdirs.saved_config(write_workdir(tmp_path, config))
  assert restored.to_dict() == config.to_dict()
  assert restored.model.strides == (2, (1, 3))
  assert restored.is_locked


DATA = {"name": "digits"}


def write_workdir(path: pathlib.Path, config=None, data=DATA) -> pathlib.Path:
  with workdirs.locked(path):
    workdirs.write_description(path, config or toy_config(), data)
    return path


def test_another_config_in_a_workdir_is_printed_key_by_key(tmp_path):
  workdir = write_workdir(tmp_path / "run")
  changes = {"train__batch_size": 32, "train__seeds": 2, "train__num_steps": 30}
  other = toy_config(**changes, optimizer__learning_rate=0.5)
  other.unlock().model.new = 1
  with pytest.raises(RunError) as info:
    workdirs.check_same_run(workdir, other)
  _, *lines, _ = str(info.value).splitlines()
  expected = (
    r"model\.new: .* 1\b",
    r"optimizer\.learning_rate: .*\b0\.001\b.* 0\.5\b",
    r"train\.batch_size: .*\b16\b.* 32\b",
    r"train\.seeds: .*\b1\b.* 2\b",
  )
  for line, pattern in zip(lines, expected, strict=True):
    assert re.search(pattern, line)
  assert workdirs.load_settings(workdir).config.to_dict() == toy_config().to_dict()


def test_resumed_run_may_change_cadence_and_grow(tmp_path):
  workdir = write_workdir(tmp_path / "run")
  workdirs.check_same_run(tmp_path / "new", toy_config())
  allowed = {"num_steps": 30, "steps_per_dispatch": 1, "log_every": 1, "keep_checkpoints": 9}
  changes = {f"train__{key}": value for key, value in allowed.items()}
  changes |= dict.fromkeys(("data__dir", "data__affnist_dir"), "/elsewhere")
  workdirs.check_same_run(workdir, toy_config(**changes, evaluation__batch_size=1))
  with pytest.raises(RunError, match=r"train\.num_steps.* 24\b.* 23\b"):
    workdirs.check_same_run(workdir, toy_config(train__num_steps=23))


def test_a_run_saved_before_a_key_existed_resumes(tmp_path):
  old = toy_config().unlock()
  for key in ("resize", "resize_fill", "channels"):
    del old.data[key]
  workdir = write_workdir(tmp_path / "run", old.lock())
  workdirs.check_same_run(workdir, toy_config())
  workdirs.check_same_run(write_workdir(tmp_path / "new", toy_config()), old)
  assert workdirs.load_settings(workdir).data == read_settings(toy_config()).data
  with pytest.raises(RunError, match=r"data\.resize.* 0\b.* 16\b"):
    workdirs.check_same_run(workdir, toy_config(data__resize=16))


def test_cosine_that_ends_with_the_run_cannot_have_another_length(tmp_path):
  def cosine(num_steps: int, decay_steps: int):
    return toy_config(
      train__num_steps=num_steps, optimizer__schedule="cosine", optimizer__decay_steps=decay_steps
    )

  write_workdir(tmp_path, cosine(24, 0))
  workdirs.check_same_run(tmp_path, cosine(24, 0))
  for num_steps in (23, 30):
    message = rf"train\.num_steps.* 24\b.* {num_steps}\b(?s:.*)optimizer\.decay_steps"
    with pytest.raises(RunError, match=message):
      workdirs.check_same_run(tmp_path, cosine(num_steps, 0))
  # Where more differs, the list has all of it.
  with pytest.raises(RunError, match=r"optimizer\.decay_steps.* 0\b.* 30\b"):
    workdirs.check_same_run(tmp_path, cosine(30, 30))
  write_workdir(tmp_path / "free", cosine(24, 40))
  workdirs.check_same_run(tmp_path / "free", cosine(30, 40))


IMAGES = random_images(5, channels=1)
LABELS = np.array([0, 1, 1, 0, 1], np.int32)
PIXEL = IMAGES ^ np.eye(1, IMAGES.size, 14, dtype=np.uint8).reshape(IMAGES.shape)  # of image 1


def described(images=IMAGES, labels=LABELS, names=("cat", "dog"), **more):
  # Every second image is a view that is not contiguous, as a source may give it.
  splits = {"train": Split(images, labels), "test": Split(images[::2], labels[::2]), **more}
  return workdirs.describe_data(Dataset("folder", names, splits))


def test_another_data_set_than_the_runs_own_is_refused(tmp_path):
  workdirs.check_same_data(tmp_path, described())  # a new folder
  write_workdir(tmp_path, data=described())
  workdirs.check_same_data(tmp_path, described(IMAGES.copy()))
  for description, *messages in (
    (described(PIXEL), r"train: .*'examples': 5, .*'hash'"),
    (described(labels=1 - LABELS), "train: ", "test: "),
    (
      described(IMAGES.swapaxes(1, 2)),
      r"train: .*\[4, 3, 1\].*\[3, 4, 1\]",
      "test: ",
    ),
    (described(validation=Split(IMAGES, LABELS)), r"validation: .*: 5"),
    (described(names=("cat", "bird")), r"class_names: \['cat', 'dog'\].*\['cat', 'bird'\]"),
  ):
    with pytest.raises(RunError) as info:
      workdirs.check_same_data(tmp_path, description)
    _, *lines, last = str(info.value).splitlines()
    for message, line in zip(messages, lines, strict=True):
      assert re.search(message, line)
    assert "config.data.dir" in last
  (tmp_path / "data.json").unlink()  # a run from before there was such a file
  workdirs.check_same_data(tmp_path, described(PIXEL))


WRONG_JSON = (b'{"name": ', b"[1]", b"[" * 100_000, b"\xff\xfe", None)


def test_unwritable_and_locked_workdirs_are_refused(tmp_path, monkeypatch):
  def assert_refused(path, message):
    with pytest.raises(RunError, match=message):
      write_workdir(path)

  with workdirs.locked(tmp_path):
    assert_refused(tmp_path, re.escape(str(tmp_path)))
  write_workdir(tmp_path)  # the lock is gone
  (tmp_path / "file").write_text("")
  assert_refused(tmp_path / "file" / "run", "--workdir")

  def fail(path, text):
    raise OSError(errno.EROFS, "disk", str(path))

  monkeypatch.setattr(workdirs, "write_whole", fail)
  assert_refused(tmp_path / "run", r"disk.*config\.json")
  assert not (tmp_path / "run" / "config.json").exists()


def test_folder_without_a_run_is_explained(tmp_path):
  with pytest.raises(RunError, match=r"config\.json"):
    workdirs.load_settings(tmp_path)
  (tmp_path / "config.json").write_text('{"system": 3}')
  with pytest.raises(RunError, match=r"config\.json.*'data'"):
    workdirs.load_settings(tmp_path)


@pytest.mark.parametrize("content", WRONG_JSON, ids=lambda content: repr(content)[:20])
def test_broken_files_are_explained(tmp_path, content):
  for name in ("data.json", "config.json"):
    if content is None:
      (tmp_path / name).mkdir()
    else:
      (tmp_path / name).write_bytes(content)
  for read in (workdirs.load_settings, workdirs.saved_settings):
    with pytest.raises(RunError, match=r"config\.json"):
      read(tmp_path)
  with pytest.raises(RunError, match=r"data\.json"):
    workdirs.check_same_data(tmp_path, described())


def test_an_edited_saved_config_is_used_with_a_warning(tmp_path, caplog):
  write_workdir(tmp_path)
  path = tmp_path / "config.json"
  assert workdirs.load_settings(tmp_path).model["num_features"] == 8
  assert not caplog.messages
  path.write_text(path.read_text().replace('"num_features": 8', '"num_features": 9'))
  assert workdirs.load_settings(tmp_path).model["num_features"] == 9
  assert "config.json" in caplog.text


def test_saved_config_imports_no_code(tmp_path, monkeypatch):
  """Its system is a module that is imported already, or that the user names."""
  write_workdir(tmp_path)
  assert workdirs.load_settings(tmp_path).system == "tests.toy_system"  # is imported here
  (tmp_path / "payload.py").write_text("raise SystemExit('code of a folder that was shared')")
  path = tmp_path / "config.json"
  for name, own_system in (("shared.payload", ""), ("scae_jax.models.x.payload", "")):
    path.write_text(json.dumps(toy_config().to_dict() | {"system": name}))
    with pytest.raises(RunError, match=rf"config\.json.*'{name}'.*--system={name}"):
      workdirs.load_settings(tmp_path, own_system)
    assert workdirs.load_settings(tmp_path, name).system == name
    with pytest.raises(RunError, match=rf"'{name}'.*--system=another\.one"):
      workdirs.load_settings(tmp_path, "another.one")
  workdirs.check_same_run(tmp_path / "new", toy_config())
  # os.system is imported everywhere, and data.dir would be its argument.
  for name in ("shared.payload", "os.system"):
    path.write_text(json.dumps(toy_config(data__name=name, data__dir="ls").to_dict()))
    with pytest.raises(RunError, match=rf"config\.json.*'{name}'.*--source={name}"):
      workdirs.load_settings(tmp_path)
    assert workdirs.load_settings(tmp_path, own_source=name).data.name == name
    with pytest.raises(RunError, match=rf"'{name}'.*'another\.one'"):
      workdirs.load_settings(tmp_path, own_source="another.one")
  for name in ("scae", "scae_jax.models.scae"):
    path.write_text(json.dumps(toy_config().to_dict() | {"system": name}))
    assert workdirs.load_settings(tmp_path).system == name


def test_user_errors_are_explained_and_defects_keep_their_traceback():
  with pytest.raises(RunError, match=r"nowhere\.txt"), as_run_errors():
    raise FileNotFoundError("nowhere.txt")
  with pytest.raises(TypeError), as_run_errors():
    raise TypeError
