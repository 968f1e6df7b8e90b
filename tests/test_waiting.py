"""The sign of life from work that takes long."""

import io
import time

import pytest

from scae_jax import waiting as module
from scae_jax.waiting import waiting


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def standard_error(monkeypatch):
  def replace(file):
    monkeypatch.setattr("sys.stderr", file)
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    return file

  return replace


def test_elsewhere_than_on_a_terminal_it_is_one_line(standard_error):
  file = standard_error(io.StringIO())
  with waiting("reading [all] images", 3) as advance:
    for _ in range(3):
      time.sleep(0.1)
      advance(1)
  assert file.getvalue() == "reading [all] images ...\n"


def test_on_a_terminal_it_is_a_bar_that_moves_and_goes_away(standard_error):
  file = standard_error(Terminal())
  with waiting("reading [all] images", 3) as advance:
    advance(2)
    time.sleep(0.3)
    output = file.getvalue()
  assert "reading [all] images" in output
  assert "2/3" in output
  assert file.getvalue().endswith("\x1b[2K")  # the line is erased


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_short_work_says_nothing(standard_error, kind, monkeypatch):
  file = standard_error(kind())
  monkeypatch.setattr(module, "PATIENCE", 60)
  started = time.monotonic()
  with waiting("nothing"):
    pass
  assert time.monotonic() - started < 10
  assert file.getvalue() == ""


def test_what_fails_fails_as_it_would(standard_error):
  file = standard_error(io.StringIO())
  with pytest.raises(ValueError, match="why"), waiting("failing"):
    raise ValueError("why")
  assert file.getvalue() == ""
