"""Names of classes in figures: long, many, and in letters that few fonts have."""

import pathlib
import unicodedata

import matplotlib.style
import numpy as np
import pytest
from matplotlib import font_manager

from scae_jax.evaluation.items import Figure
from scae_jax.evaluation.report_figures import draw_figures
from scae_jax.figures import FIGURES, names
from scae_jax.figures.style import STYLE, new_figure
from tests.stand_ins import rendered

RNG = np.random.RandomState(0)
NO_FONT_HAS = "\U000e0fff"  # unassigned
STIX = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "STIXGeneral.ttf"
ONLY_STIX_HAS = "\u1d81"  # of these two: DejaVu Sans, which is the default, lacks it


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
  """A machine without fonts but matplotlib's own, where nothing was warned of yet."""
  names._written.cache_clear()
  monkeypatch.setattr(font_manager, "findSystemFonts", list)


def figures_of(class_names):
  """All figures that name classes, drawn without a warning."""
  count = len(class_names)
  labels = RNG.randint(0, count, 60).astype(np.int32)
  shares = RNG.dirichlet(np.ones(count), (2, 9))
  arguments = {
    "presences_by_class": (RNG.uniform(size=(60, 8)), labels),
    "confusion": (RNG.randint(0, 9, (count, count)),),
    "embedding": (RNG.normal(size=(60, 2)), labels),
    "coupling": (RNG.uniform(size=(4, 4, 1)), shares, RNG.normal(size=(2, 9, count))),
  }
  with matplotlib.rc_context(STYLE):
    for name, values in arguments.items():
      figure = FIGURES[name](*values, class_names)
      rendered(figure)
      yield name, figure


@pytest.mark.parametrize(("length", "count"), [(1, 2), (12, 15), (200, 2), (60, 221)])
def test_long_and_many_names_leave_room_for_the_picture(length, count):
  class_names = [f"{'Wm ' * 70}"[: length - len(str(i))] + str(i) for i in range(count)]
  for name, figure in figures_of(class_names):
    size = figure.get_size_inches()
    assert size.max() < 20
    for axes in figure.axes:
      inches = axes.get_position().size * size
      assert inches.min() > 0.5 or axes.get_label() == "<colorbar>", (name, inches)
    pixels = size * figure.dpi
    for text in figure.findobj(matplotlib.text.Text):
      if text.get_visible() and text.get_text().strip():
        box = text.get_window_extent()
        is_inside = (box.min > -2).all() and (box.max < pixels + 2).all()
        assert is_inside or not text.get_text().startswith("Wm"), (name, text)


def test_a_long_name_keeps_both_ends_and_no_letter_is_cut_apart():
  assert names.shorten("short\n name ") == "short name"
  shortened = names.shorten("ILSVRC 2012, training images, class 001")
  assert shortened.startswith("ILSVRC 2012,")
  assert shortened.endswith("class 001")
  assert len(shortened) == names.MOST
  assert len(names.shorten(50 * "斑")) == (names.HEAD + (names.MOST - names.HEAD - 1)) // 2 + 1
  for cluster in ("षि", "e\u0301", "👩🏽\u200d🚀"):
    head, tail = names.shorten(40 * cluster).split("…")
    assert set(head.split(cluster)) == set(tail.split(cluster)) == {""}
  assert unicodedata.category("\u093f") == "Mc"


def test_letters_of_no_font_are_the_number_and_one_warning(caplog):
  for _, figure in figures_of(("cat", NO_FONT_HAS, "dog")):
    written = {text.get_text() for text in figure.findobj(matplotlib.text.Text)}
    assert {"cat", "#1", "dog"} <= written
  assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_another_font_is_taken_where_one_has_the_letters(monkeypatch, caplog):
  assert names.written((ONLY_STIX_HAS,)).texts == ["#0"]
  names._written.cache_clear()
  caplog.clear()
  monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(STIX)])
  for _, figure in figures_of(("cat", ONLY_STIX_HAS)):
    assert ONLY_STIX_HAS in {text.get_text() for text in figure.findobj(matplotlib.text.Text)}
  assert not caplog.records


def test_settings_of_the_user_change_no_figure_but_for_fonts(monkeypatch):
  def drawn():
    figure = new_figure(1, 1, "title")
    figure.subplots().plot([1, 2], label="line")
    return figure

  figures = [Figure(0, "figure", drawn, {})]
  (expected,) = draw_figures(figures).values()
  with matplotlib.style.context("dark_background"):
    for key, value in {"text.usetex": True, "savefig.transparent": True}.items():
      monkeypatch.setitem(matplotlib.rcParams, key, value)
    monkeypatch.setenv("PATH", "")  # no LaTeX
    (drawn,) = draw_figures(figures).values()
  assert drawn == expected
