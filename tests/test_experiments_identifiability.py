"""experiments/identifiability.py on a run whose templates match as they are made to."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import identifiability as command
from experiments import one_run
from scae_jax.data.dataset import Dataset, Split
from scae_jax.evaluation import template_match
from scae_jax.models.pictures import ANGLES, part_identity
from scae_jax.training.build import Run
from scae_jax.training.config import read_settings
from tests.test_evaluation_equivariance import system
from tests.test_evaluation_template_match import LINES, RING, SEVEN
from tests.toy_system import toy_config

CANVAS, NUM_IMAGES = 18, 12
TEMPLATES = np.stack([SEVEN, RING, SEVEN[:, ::-1], np.zeros_like(RING), LINES])


def two_parts(image):
  """One part draws the upper half, the other the lower one."""
  shares = jnp.arange(CANVAS)[None, None, :, None] < CANVAS // 2
  picture = image[..., 0][:, None]
  return jnp.concatenate([shares * picture, ~shares * picture], axis=1)


def pictures(variables, batch):
  templates = jnp.asarray(TEMPLATES) * variables["strength"]
  return {
    "templates": {"templates": templates},
    "part_identity": part_identity(batch["image"], two_parts),
    "never drawn": {},
  }


@pytest.fixture
def opened(monkeypatch):
  """The command finds a run of the given seeds, whose system feeds the given pictures."""
  config = toy_config(data__canvas=CANVAS)
  images = np.random.RandomState(0).randint(0, 255, (NUM_IMAGES, 16, 16, 1), np.uint8)
  split = Split(images, np.arange(NUM_IMAGES, dtype=np.int32)[::-1] % 3)
  dataset = Dataset("noise", ("a", "b", "c"), {"train": split, "test": split})
  monkeypatch.setattr(one_run, "load_settings", lambda workdir, changes: config)
  monkeypatch.setattr(one_run, "keep_compiled", lambda folder: None)

  def open_with(feeds, strengths=(1.0,)):
    fed = dataclasses.replace(system(None), pictures=feeds)
    variables = {seed: {"strength": jnp.float32(one)} for seed, one in enumerate(strengths)}
    made = Run(read_settings(config), fed, dataset, variables, 7, is_latest=True)
    monkeypatch.setattr(one_run, "open_run", lambda *arguments: made)
    return images[[2, 1, 0]]  # the first of every class

  return open_with


def main(monkeypatch, *arguments):
  monkeypatch.setattr("sys.argv", ["identifiability", *map(str, arguments)])
  command.main()


def test_the_command_writes_the_number_and_the_picture(opened, monkeypatch, tmp_path, capsys):
  images = opened(pictures, (1.0, 0.5))
  # Mirror images match at the start; how far the steps get is tested with the matches.
  few = functools.partial(template_match.match_errors, num_steps=20)
  monkeypatch.setattr(template_match, "match_errors", few)
  drawings = []
  draw = command.FIGURES["part_identity"]

  def keep(**arrays):
    drawings.append(arrays)
    return draw(**arrays)

  monkeypatch.setitem(command.FIGURES, "part_identity", keep)
  main(monkeypatch, tmp_path / "run", tmp_path / "out")
  ends = ("json", "md", "png")
  names = [f"identifiability-run-seed-{seed}.{end}" for seed in (0, 1) for end in ends]
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
  first, second = (json.loads((tmp_path / "out" / name).read_text()) for name in names[::3])
  assert (first["step"], first["seed"], second["seed"]) == (7, 0, 1)
  assert first["command"] == (
    f"python -m experiments.identifiability {tmp_path / 'run'} {tmp_path / 'out'}"
  )
  assert {"date", "versions", "hardware"} <= set(first)
  assert (first["templates"], first["blank"]) == (5, [3])
  assert [one["template"] for one in first["nearest"]] == [0, 1, 2, 4]
  assert [first["nearest"][i]["by"] for i in (0, 2)] == [2, 0]  # mirror images
  assert first["matched"] == 0.5
  # Errors are relative: half as bright is the same. Adam's epsilon knows the difference.
  assert second["mean_error"] == pytest.approx(first["mean_error"], abs=1e-3)

  text = (tmp_path / "out" / names[1]).read_text()
  printed = capsys.readouterr().out
  assert text in printed
  assert f"| 4 of 5 | {first['mean_error']:.3f} | 50% |" in text
  assert "| 0 | 2 | 0.000 |" in text
  assert "1 of 5 templates have no ink and are left out: 3." in text
  assert first["command"] in text
  assert first["versions"]["jax"] in text
  assert first["date"][:10] in text

  assert [one["source"] for one in drawings] == [
    f"tests.toy_system, run-seed-{seed}, step 7" for seed in (0, 1)
  ]
  assert [len(drawings), drawings[0]["degrees"].tolist()] == [2, list(ANGLES)]
  # On the canvas and not turned.
  shown = drawings[0]["image"][:3, 0, 1:-1, 1:-1]
  np.testing.assert_allclose(shown, images / 255, atol=1e-5)


def test_the_command_refuses_in_one_message(opened, monkeypatch, tmp_path, capsys):
  for feeds, strength, message in (
    (lambda variables, batch: {}, 1.0, "no figure templates and part_identity"),
    (pictures, 0.0, "0 of 5 templates have ink"),
  ):
    opened(feeds, (strength,))
    with pytest.raises(SystemExit) as stopped:
      main(monkeypatch, tmp_path / "run", tmp_path / "out")
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
