"""Writes the page of a trained model: one HTML file with its parameters, some images and the code.

The JavaScript beside this file is put inline: browsers load no modules from a file on disk. It
computes what the Python of the same names computes, from parameters rounded to float16.
"""

import base64
import json
import pathlib
import re
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.manifold import TSNE

from scae_jax.data.augmentation import centre_on_canvas
from scae_jax.data.dataset import Dataset
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.files import write_whole
from scae_jax.figures.style import palette
from scae_jax.library.model import Model
from scae_jax.models.system import ImageSpec

FOLDER = pathlib.Path(__file__).parent
# Each after those that it imports.
MATHEMATICS = ("geometry", "mixtures", "layers", "scae", "weights")
VIEW = ("pictures", "choose", "handles", "page")
NOISY = ("part_encoder", "object_decoder")  # stages that may keep their noise on in evaluation
MAX_BYTES = 3_000_000
MAX_IMAGES = 300
PERPLEXITY = 8.0  # of the map
MAX_FLOAT16 = float(np.finfo(np.float16).max)


def write_page(model: Model, dataset: Dataset, path: pathlib.Path) -> None:
  """Writes the page of a model and of test images of a data set.

  Raises:
    ValueError: the JavaScript does not support the model, or the page would be too large.
  """
  require_supported(model)
  content = fill(
    (FOLDER / "page.html").read_text(encoding="utf-8"),
    style=(FOLDER / "style.css").read_text(encoding="utf-8"),
    script=script(*MATHEMATICS, *VIEW),
    **carried(model, dataset),
  ).encode()
  if len(content) > MAX_BYTES:
    raise ValueError(
      f"the page would have {len(content) / 1e6:.1f} MB, most of it parameters; it may have"
      f" {MAX_BYTES / 1e6:.0f}. Train a model of fewer or narrower capsules."
    )
  path.parent.mkdir(parents=True, exist_ok=True)
  write_whole(path, content)


def require_supported(model: Model) -> None:
  """Raises ValueError for a model that the JavaScript does not compute."""
  if (system := model.settings.system) != "scae":
    raise ValueError(f"the page shows runs of the system 'scae'; this is one of {system!r}.")
  options = options_of(model)
  noise = {f"{stage}.noise_in_evaluation": options[stage]["noise_in_evaluation"] for stage in NOISY}
  given = {name: options[name] for name in ("target", "compute_dtype")} | noise
  needed = {"target": "image", "compute_dtype": "float32"} | dict.fromkeys(noise, False)
  for key, value in given.items():
    if value != needed[key]:
      raise ValueError(
        f"the page needs config.model.{key} to be {needed[key]!r}; this run has {value!r}."
      )


def options_of(model: Model) -> dict[str, Any]:
  """The config's model section."""
  return model.settings.config.to_dict()["model"]


def carried(model: Model, dataset: Dataset) -> dict[str, str]:
  """What the page carries, by the name of the place in page.html."""
  spec = model.spec
  assert isinstance(spec, ImageSpec)
  params = {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
    for path, leaf in jax.tree.leaves_with_path(model.variables["params"])
  }
  split = load_split(dataset, "test", MAX_IMAGES)
  images = np.asarray(centre_on_canvas(jnp.asarray(split["image"]), spec.canvas))
  found = model.encode(images)
  presence, mass = np.asarray(found.object_presence), np.asarray(found.posterior_mass)
  # Objects that explain the most take the colours that are the easiest to tell apart.
  rank = np.argsort(np.argsort(-mass.mean(axis=0), kind="stable"))
  facts = {
    "name": dataset.name,
    "step": model.step,
    "canvas": spec.canvas,
    "channels": spec.channels,
    "frame": frame_of(images),
    "options": options_of(model),
    "shapes": {name: list(array.shape) for name, array in params.items()},
    "class_names": list(model.class_names),
    "labels": split["label"].tolist(),
    "map": _in_unit_square(embed(presence)).round(3).tolist(),
    "colours": _bytes(palette(len(rank))[rank]),
    "label_colours": _bytes(palette(len(model.class_names))),
  }
  return {
    "title": f"Inside a capsule autoencoder of {dataset.name}",
    "facts": json.dumps(facts).replace("<", "\\u003c"),
    "images": deflated(images.tobytes()),
    "params": deflated(float16_bytes(params)),
  }


def frame_of(images: np.ndarray) -> list[float]:
  """Where the ink of most images [n, h, w, c] lies: top, left, bottom and right, in pixels."""
  inked = images.max(axis=-1) > 127
  edges = []
  for axis in (2, 1):
    lines = inked.any(axis=axis)[inked.any(axis=(1, 2))]
    first, beyond = lines.argmax(axis=1), lines.shape[1] - lines[:, ::-1].argmax(axis=1)
    edges.append((float(np.median(first)), float(np.median(beyond))))
  (top, bottom), (left, right) = edges
  return [top, left, bottom, right]


def float16_bytes(params: dict[str, np.ndarray]) -> bytes:
  """All low bytes, then all high bytes, which deflate better apart."""
  numbers = np.concatenate([array.ravel() for array in params.values()])
  if np.abs(numbers).max() > MAX_FLOAT16:
    raise ValueError(f"the page has float16 parameters, and one is larger than {MAX_FLOAT16:.0f}.")
  return numbers.astype("<f2").view(np.uint8).reshape(-1, 2).T.tobytes()


def deflated(content: bytes) -> str:
  """As `inflate` in weights.js reads it."""
  return base64.b64encode(zlib.compress(content, 9)).decode()


def inflated(text: str) -> bytes:
  """The inverse of `deflated`."""
  return zlib.decompress(base64.b64decode(text))


def script(*names: str) -> str:
  """Modules one after another as one: without their imports of each other and exports."""
  parts = []
  for name in names:
    text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    text = re.sub(r"^import \{[^}]*\} from \"[^\"]*\";\n", "", text, flags=re.MULTILINE)
    parts.append(f"// {name}.js\n" + re.sub(r"^export ", "", text, flags=re.MULTILINE))
  return "\n".join(parts)


def fill(template: str, **texts: str) -> str:
  """The template with each `{{name}}` replaced."""
  return re.sub(r"\{\{(\w+)\}\}", lambda place: texts[place[1]], template)


def embed(presence: np.ndarray) -> np.ndarray:
  """Places images in the plane by t-SNE of their presences [n, k]: [n, 2]."""
  # Of neighbours: fewer than a class has, or its images fall together into one dot.
  perplexity = min(PERPLEXITY, (len(presence) - 1) / 3)
  return TSNE(perplexity=perplexity, init="random", random_state=0).fit_transform(presence)


def _bytes(colours: np.ndarray) -> list[list[int]]:
  return np.round(255 * colours).astype(int).tolist()


def _in_unit_square(points: np.ndarray) -> np.ndarray:
  """Points [n, 2] moved and scaled, in equal measure, into [0, 1]."""
  low, high = points.min(axis=0), points.max(axis=0)
  return 0.5 + (points - (low + high) / 2) / max(float((high - low).max()), 1e-6)
