"""experiments/sample_object.py on tiny probabilistic capsules."""

import numpy as np
import pytest

from configs import probabilistic
from experiments import one_run
from experiments import sample_object as command
from scae_jax.training.build import Run
from scae_jax.training.config import read_settings
from tests import toy_system
from tests.test_models_generative_pictures import (
  CANVAS,
  OBJECTS,
  batch,
  generative,
  system,
  variables,
)
from tests.test_models_generative_pictures import matrix as in_full
from tests.toy_system import toy_config, toy_data

__all__ = ["batch", "generative", "system", "variables"]  # fixtures


@pytest.fixture
def opened(monkeypatch, system, variables):
  """The command finds a run of two seeds, of which the second draws what the first does."""
  config = probabilistic.get_config()
  config.data.canvas = CANVAS
  made = Run(read_settings(config), system, None, {3: variables, 4: variables}, 7, is_latest=True)
  monkeypatch.setattr(one_run, "load_settings", lambda workdir, changes: config)
  monkeypatch.setattr(one_run, "keep_compiled", lambda folder: None)
  monkeypatch.setattr(one_run, "open_run", lambda *arguments: made)
  return made


def main(monkeypatch, *arguments):
  monkeypatch.setattr("sys.argv", ["sample_object", "runs/tiny", *map(str, arguments)])
  command.main()


@pytest.mark.usefixtures("opened")
def test_the_command_draws_the_object_at_its_pose(monkeypatch, tmp_path, capsys, generative):
  shown = []
  figure = command.FIGURES["prior_samples"]

  def keep(pictures, title):
    shown.append((pictures, title))
    return figure(pictures, title)

  monkeypatch.setitem(command.FIGURES, "prior_samples", keep)
  out = tmp_path / "new" / "object.png"
  flags = ("--turn=90", "--scale=0.8", "--shift", "0.3", "-0.1", "--samples=2", f"--out={out}")
  main(monkeypatch, "--object=1", *flags)
  assert out.stat().st_size > 1000
  assert f"wrote {out}" in capsys.readouterr().out
  ((pictures, title),) = shown
  assert pictures.shape == (3, CANVAS, CANVAS, 1)
  for word in ("tiny, step 7: object 1", "90°", "× 0.8", "right 0.3, down -0.1", "samples"):
    assert word in title
  # Where its parts are expected: a quarter counter-clockwise, then the shift.
  relations = generative.relations()[0]
  pose = np.array([[0, 0.8, 0.3], [-0.8, 0, -0.1]])
  places = [(in_full(pose) @ in_full(np.eye(2, 3) + one))[:2, 2] for one in relations.offsets[1]]
  seen = [place for place in places if np.abs(place).max() < 0.8]
  assert seen
  for x, y in seen:
    column, row = (int((place + 1) / 2 * CANVAS) for place in (x, y))
    assert pictures[0, row - 2 : row + 3, column - 2 : column + 3].max() > 0.02
  assert np.abs(pictures[1] - pictures[2]).max() > 0.05  # samples differ


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--object=2",), f"--object must be 0 to {OBJECTS - 1}"),
    (("--object=-1",), "it is -1"),
    (("--object=0", "--scale=0"), "--scale must be above 0; it is 0"),
    (("--object=0", "--turn=nan"), "--turn and --shift must be finite"),
    (("--object=0", "--samples=100"), "--samples must be 0 to 99; it is 100"),
    (("--object=0", "--seed=0"), "--seed must be one of 3, 4; it is 0"),
    (("--object=0", "--out=object.jpg"), "--out must end in .png; it is object.jpg"),
  ],
)
@pytest.mark.usefixtures("opened")
def test_the_command_refuses_in_one_message(monkeypatch, tmp_path, capsys, flags, message):
  with pytest.raises(SystemExit) as stopped:
    main(monkeypatch, f"--out={tmp_path / 'object.png'}", *flags)
  assert stopped.value.code == 2
  assert message in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_other_systems_are_refused(monkeypatch, tmp_path, capsys, opened):
  config = toy_config()
  toy = toy_system.make_system(dict(config.model), dict(config.loss), toy_data(side=18))
  run = Run(read_settings(config), toy, None, {0: {}}, 7, is_latest=True)
  monkeypatch.setattr(one_run, "open_run", lambda *arguments: run)
  with pytest.raises(SystemExit):
    main(monkeypatch, "--object=0", f"--out={tmp_path / 'object.png'}")
  assert "this run is of system 'tests.toy_system'" in capsys.readouterr().err
