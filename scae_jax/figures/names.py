"""How figures write the names of classes: shortened, and in whatever fonts this machine has."""

import dataclasses
import functools
import unicodedata
from collections.abc import Iterator, Sequence

from absl import logging
from matplotlib import font_manager, rcParams
from matplotlib.ft2font import FT2Font

MOST = 24  # letters; those of Chinese, Japanese and Korean are two wide
HEAD = 14  # of these before the ellipsis
INCHES = 0.075  # a letter of labels takes up to this
_UPRIGHT = ("regular", "book", "roman", "normal")  # styles; others are bold, or slanted
# Fonts whose letters are all the same, or are pictures, which matplotlib cannot draw.
_NO_LETTERS = ("last resort", "lastresort", "adobe blank", "color")


@dataclasses.dataclass(frozen=True)
class Names:
  """The names of classes as figures write them."""

  texts: list[str]  # one a class
  fonts: list[str]  # families, in the order in which a letter is looked for

  @property
  def length(self) -> float:
    """Of the longest, inches."""
    return INCHES * max(map(_width, self.texts), default=0)


def written(class_names: Sequence[str]) -> Names:
  """Names of at most 24 letters, the middle of longer ones left out.

  A name with letters that no font of this machine has is written as the class's number, `#3`; the
  first time there is one, a warning says so.
  """
  return _written(tuple(class_names))


@functools.cache  # one warning for all figures
def _written(class_names: tuple[str, ...]) -> Names:
  texts = [shorten(name) for name in class_names]
  fonts, missing = _fonts_for("".join(texts))
  odd = [i for i, text in enumerate(texts) if missing & set(text)]
  if odd:
    logging.warning(
      "Figures show numbers instead of the names of %d classes, class %d (%r) among them: no font"
      " here has their letters. Noto fonts have most (Debian: fonts-noto).",
      len(odd),
      odd[0],
      class_names[odd[0]],
    )
  return Names([f"#{i}" if i in odd else text for i, text in enumerate(texts)], fonts)


def shorten(name: str) -> str:
  """The name on one line, its middle left out where it is longer than 24 letters."""
  name = " ".join(name.split())
  if _width(name) <= MOST:
    return name
  letters = [*_letters(name)]
  head = _first(letters, HEAD)
  tail = _first(letters[::-1], MOST - HEAD - 1)[::-1]
  return "".join([*head, "…", *tail])


def _first(letters: list[str], width: int) -> list[str]:
  """As many of the first letters as take this width."""
  taken: list[str] = []
  for letter in letters:
    if _width("".join(taken)) + _width(letter) > width:
      break
    taken.append(letter)
  return taken


def _letters(text: str) -> Iterator[str]:
  """The letters, with the marks and joined letters that belong to them."""
  letter = ""
  for character in text:
    is_mark = unicodedata.category(character)[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff"
    if letter and not (is_mark or character == "\u200d" or letter[-1] == "\u200d"):
      yield letter
      letter = ""
    letter += character
  yield letter


def _width(text: str) -> int:
  """In Latin letters."""
  return sum(
    0 if unicodedata.category(c)[0] == "M" else 1 + (unicodedata.east_asian_width(c) in "WF")
    for c in text
  )


def _fonts_for(text: str) -> tuple[list[str], set[str]]:
  """Families that have the characters, the usual ones first; and characters that none has."""
  families = list(rcParams["font.family"])
  usual = font_manager.findfont(font_manager.FontProperties(family=families))
  missing = set(text) - set(map(chr, FT2Font(usual).get_charmap()))
  if missing:
    found = sorted(font_manager.findSystemFonts())  # what was installed lately, too
    by_path = {path: have for path in found if (have := missing & _characters(path))}
    while missing and by_path:
      path = max(by_path, key=lambda path: len(by_path[path] & missing))
      if not by_path[path] & missing:
        break
      font_manager.fontManager.addfont(path)
      families.append(FT2Font(path).family_name)
      missing -= by_path.pop(path)
  return families, missing


def _characters(path: str) -> set[str]:
  """What a font can draw."""
  try:
    font = FT2Font(path)
    family, style = font.family_name.lower(), font.style_name.lower()
    is_drawn = font.scalable and style in _UPRIGHT and not any(no in family for no in _NO_LETTERS)
    return set(map(chr, font.get_charmap())) if is_drawn else set()
  except (OSError, RuntimeError, ValueError):  # not a font after all
    return set()
