"""Errors that models share: counted as by hand."""

import json

import numpy as np
import pytest

from experiments import same_errors
from experiments.same_errors import shared_errors
from tests.stand_ins import call, labelled

TRUTH = np.array([0, 1, 2, 1, 0])
NAMED = np.array([[0, 2, 1, 1, 0], [0, 2, 0, 1, 1], [0, 0, 1, 1, 0]])


def test_shared_errors_are_counted():
  assert shared_errors(NAMED, TRUTH) == {
    "wrong": [2, 3, 2],
    "by_pair": {"0, 1": 2, "0, 2": 2, "1, 2": 2},
    "by_all": [1, 2],
    "same_name": 0,
    "majority": pytest.approx(3 / 5),
  }
  alike = np.array([[0, 2, 2], [0, 2, 2], [0, 2, 0]])
  assert shared_errors(alike, np.array([0, 1, 1]))["same_name"] == 1


class Named:
  def __init__(self, names):
    self.names = names

  def predict(self, images):
    assert len(images) == len(self.names)
    return self.names


def test_the_command_writes_record_and_picture(tmp_path, monkeypatch, capsys):
  images = np.zeros((5, 4, 4, 1), np.uint8)
  data = labelled("stand-in", images, TRUTH)
  monkeypatch.setattr(same_errors, "load_dataset", lambda name, folder: data)
  monkeypatch.setattr(same_errors.scae_jax, "load", lambda name: Named(NAMED[int(name)]))
  call(monkeypatch, same_errors, tmp_path, "0", "1", "2")
  record = json.loads((tmp_path / "same-errors.json").read_text())
  assert record["models"] == ["0", "1", "2"]
  assert record["by_all"] == [1, 2]
  assert (tmp_path / "same-errors.png").is_file()
  assert "[2, 3, 2]" in capsys.readouterr().out
