"""The names of classes in figures: shortened, and in fonts that have their letters."""

import dataclasses
import functools
import unicodedata
from collections.abc import Iterator, Sequence

from absl import logging
from matplotlib import font_manager, rcParams
from matplotlib.ft2font import FT2Font

MOST = 24  # letters; those of Chinese, Japanese and Korean are two wide
HEAD = 14  # letters before the ellipsis
INCHES = 0.075  # largest width of a letter in labels
_UPRIGHT = ("regular", "book", "roman", "normal")  # styles; others are bold, or slanted
# Fonts whose letters are placeholders, or pictures that matplotlib cannot draw.
_NO_LETTERS = ("last resort", "lastresort", "adobe blank", "color")


@dataclasses.dataclass(frozen=True)
class Names:
  """The names of classes as they are written in figures."""

  texts: list[str]  # by class
  fonts: list[str]  # families; a letter is drawn in the first that has it

  @property
  def length(self) -> float:
    """Width of the longest text, inches."""
    return INCHES * max(map(_width, self.texts), default=0)


def written(class_names: Sequence[str]) -> Names:
  """Names shortened to 24 letters, and the fonts for them.

  A name with letters that no font of this machine has is replaced by the number of its class, such
  as `#3`, with a warning.
  """
  return _written(tuple(class_names))


@functools.cache  # one warning for all figures
def _written(class_names: tuple[str, ...]) -> Names:
  texts = [shorten(name) for name in class_names]
  fonts, missing = _fonts_for("".join(texts))
  unwritable = [i for i, text in enumerate(texts) if missing & set(text)]
  if unwritable:
    logging.warning(
      "Figures show numbers instead of the names of %d classes, class %d (%r) among them: no font"
      " here has their letters. Noto fonts have most (Debian: fonts-noto).",
      len(unwritable),
      unwritable[0],
      class_names[unwritable[0]],
    )
  return Names([f"#{i}" if i in unwritable else text for i, text in enumerate(texts)], fonts)


def shorten(name: str) -> str:
  """The name on one line; the middle of one longer than 24 letters is left out."""
  name = " ".join(name.split())
  if _width(name) <= MOST:
    return name
  letters = [*_letters(name)]
  head = _first(letters, HEAD)
  tail = _first(letters[::-1], MOST - HEAD - 1)[::-1]
  return "".join([*head, "…", *tail])


def _first(letters: list[str], width: int) -> list[str]:
  """As many of the first letters as fit into this width."""
  first: list[str] = []
  for letter in letters:
    if _width("".join(first)) + _width(letter) > width:
      break
    first.append(letter)
  return first


def _letters(text: str) -> Iterator[str]:
  """The letters, each with its combining marks and joined letters."""
  letter = ""
  for character in text:
    is_mark = unicodedata.category(character)[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff"
    if letter and not (is_mark or character == "\u200d" or letter[-1] == "\u200d"):
      yield letter
      letter = ""
    letter += character
  yield letter


def _width(text: str) -> int:
  """Width of a text, in Latin letters."""
  return sum(
    0 if unicodedata.category(c)[0] == "M" else 1 + (unicodedata.east_asian_width(c) in "WF")
    for c in text
  )


def _fonts_for(text: str) -> tuple[list[str], set[str]]:
  """Font families that together have the characters, and the characters that none has."""
  families = list(rcParams["font.family"])
  usual = font_manager.findfont(font_manager.FontProperties(family=families))
  missing = set(text) - set(map(chr, FT2Font(usual).get_charmap()))
  if missing:
    # Also fonts that were installed after Matplotlib made its list.
    font_paths = sorted(font_manager.findSystemFonts())
    by_path = {path: drawable for path in font_paths if (drawable := missing & _characters(path))}
    while missing and by_path:
      path = max(by_path, key=lambda path: len(by_path[path] & missing))
      if not by_path[path] & missing:
        break
      font_manager.fontManager.addfont(path)
      families.append(FT2Font(path).family_name)
      missing -= by_path.pop(path)
  return families, missing


def _characters(path: str) -> set[str]:
  """The characters that a font can draw."""
  try:
    font = FT2Font(path)
    family, style = font.family_name.lower(), font.style_name.lower()
    has_letters = not any(name in family for name in _NO_LETTERS)
    is_drawn = font.scalable and style in _UPRIGHT and has_letters
    return set(map(chr, font.get_charmap())) if is_drawn else set()
  except (OSError, RuntimeError, ValueError):  # not a font after all
    return set()
