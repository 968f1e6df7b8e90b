"""Writes the page of a trained model: an HTML file with code, parameters and some images.

The JavaScript beside this file is put inline, because browsers load no modules from the disk. It
computes the same as the Python functions of the same names, from parameters rounded to float16.
"""

import base64
import html
import json
import pathlib
import re
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from scae_jax.data.augmentation import centre_on_canvas
from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.evaluation.encode import encode_batch, in_batches
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.report_figures import embed
from scae_jax.figures.style import palette
from scae_jax.files import write_whole
from scae_jax.interrupt import say
from scae_jax.library.loading import model_of
from scae_jax.library.model import Model
from scae_jax.models.system import Encoding, ImageSpec
from scae_jax.page.drawable import SYSTEMS, no_encoder, page_of_system
from scae_jax.precision import single_precision
from scae_jax.training.run import Run
from scae_jax.waiting import waiting

FOLDER = pathlib.Path(__file__).parent
MAX_BYTES = 3_000_000  # of a page with the encoder
MAX_BYTES_DRAWING = 12_000_000  # of a page without it
MAX_IMAGES = 300
PERPLEXITY = 8.0  # of the t-SNE map; with more than a class has images, they fall into one dot
MAX_FLOAT16 = float(np.finfo(np.float16).max)
GREY = (128, 128, 128)  # of a part that belongs to no object


def write_page(model: Model, dataset: EvalDataset, path: pathlib.Path) -> None:
  """Writes the page of a model, with held-out images of a data set of its `DataOptions`.

  If the JavaScript does not compute the encoder, or the page would be too large with it, the page
  has the encodings of the images instead. Raises ValueError if the JavaScript does not support
  the model, or the page would still be too large.
  """
  left_out = no_encoder(model)
  content = page_of(model, page_data(model, dataset, left_out=left_out))
  if not left_out and len(content) > MAX_BYTES:
    size = f"{len(content) / 1e6:.1f} MB"
    left_out = f"the encoder, with which this page would have {size}, is left out"
    content = page_of(model, page_data(model, dataset, left_out=left_out))
  if left_out and len(content) > MAX_BYTES_DRAWING:
    raise ValueError(
      f"the page would have {len(content) / 1e6:.1f} MB, most of it parameters; it may have"
      f" {MAX_BYTES_DRAWING / 1e6:.1f} MB. Train a model of fewer or narrower capsules."
    )
  write_whole(path, content)


def page_path(run: Run, workdir: pathlib.Path) -> pathlib.Path:
  """The file of a page: `explore.html`, or `explore-step<number>.html` for an earlier step."""
  return workdir / ("explore.html" if run.is_latest else f"explore-step{run.step}.html")


@single_precision
def write_run(run: Run, folder: pathlib.Path, path: pathlib.Path) -> None:
  """`write_page` for the first seed of the run in a folder, with images of its own data set."""
  seed, variables = next(iter(run.variables.items()))
  model = model_of(folder, run.settings, run.system, run.step, seed, variables)
  page_of_system(model)  # raises for a system without a page
  assert isinstance(run.dataset, Dataset)  # the systems with a page take images
  with waiting("writing the page"):
    write_page(model, run.dataset, path)


def look_inside(run: Run, folder: pathlib.Path, workdir: pathlib.Path) -> None:
  """Writes the page of the run in a folder to its `page_path`, if its system has a page.

  Prints the path, or why there is no page.
  """
  if run.settings.system not in SYSTEMS:
    return
  path = page_path(run, workdir)
  try:
    write_run(run, folder, path)
  except ValueError as error:
    say(f"no page to look inside: {error}")
  else:
    say(f"to look inside: {path}")


def page_of(model: Model, texts: dict[str, str]) -> bytes:
  """The content of the HTML file; `texts` are those of `page_data`."""
  page = page_of_system(model)
  files = {"style": "style.css", "body": page.body, "page": "page.html"}
  parts = {name: (FOLDER / file).read_text(encoding="utf-8") for name, file in files.items()}
  template = parts.pop("page")
  return fill(template, **parts, script=script(page.mathematics + page.view), **texts).encode()


def page_data(model: Model, dataset: EvalDataset, *, left_out: str = "") -> dict[str, str]:
  """The texts that the page contains, by the name of their place in page.html.

  `left_out` says why the encoder is left out; the page then has only the parameters that drawing
  needs, and the encodings of the images. It is "" for a page with the encoder.
  """
  spec, page = model.spec, page_of_system(model)
  assert isinstance(spec, ImageSpec)
  params = {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
    for path, leaf in jax.tree.leaves_with_path(model.variables["params"])
  }
  # Images of many pixels may fill a third of the page.
  max_fitting = MAX_BYTES // 3 // (spec.channels * spec.canvas**2)
  split = load_split(dataset, dataset.held_out, max(1, min(MAX_IMAGES, max_fitting)))
  images = np.asarray(centre_on_canvas(jnp.asarray(split["image"]), spec.canvas))

  # Not by `Model.encode`, which would turn into ink once more what is ink already.
  def encode(rows: np.ndarray) -> Encoding:
    batch = evaluation_batch(split, rows, canvas=spec.canvas)
    return encode_batch(model.system, model.variables, batch)

  encoding = in_batches(encode, len(images), model.batch_size)
  presence = np.asarray(encoding.object_presence)
  map_points = embed(presence, 0, PERPLEXITY) if len(presence) > 1 else np.zeros((1, 2))
  weight = presence if encoding.posterior_mass is None else np.asarray(encoding.posterior_mass)
  # Objects that explain the most get the colours that differ most.
  rank = np.argsort(np.argsort(-weight.mean(axis=0), kind="stable"))
  encoded: dict[str, np.ndarray] = {}
  if left_out:
    params = {name: value for name, value in params.items() if name.startswith(page.drawer)}
    arrays = page.carry(model.variables, encoding)
    encoded = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
  facts = {
    "step": model.step,
    "canvas": spec.canvas,
    "channels": spec.channels,
    "frame": frame_of(images),
    "options": model.settings.config.to_dict()["model"],
    "num_objects": presence.shape[1],
    "num_parts": 0 if encoding.part_poses is None else np.shape(encoding.part_poses)[1],
    "shapes": _shapes(params),
    "encoding_shapes": _shapes(encoded),
    "left_out": left_out,
    "class_names": list(model.class_names),
    "labels": split["label"].tolist(),
    "map": [[round(x, 3) for x in point] for point in _in_unit_square(map_points).tolist()],
    "colours": [*_bytes(palette(len(rank))[rank]), GREY],
    "label_colours": _bytes(palette(len(model.class_names))),
  }
  return {
    "title": html.escape(f"Inside {page.title} of {dataset.name}"),
    "paper": html.escape(page.paper),
    "facts": json.dumps(facts, allow_nan=False).replace("<", "\\u003c"),
    "images": deflated(images.tobytes()),
    "params": deflated(float16_bytes(params)),
    "encodings": deflated(float16_bytes(encoded)),
  }


def frame_of(images: np.ndarray) -> list[float]:
  """The box [top, left, bottom, right], in pixels, around the bright pixels of images [n, h, w, c].

  Each edge is the median over the images that have pixels brighter than half. If no image has any,
  the box is the whole canvas.
  """
  inked = images.max(axis=-1) > 127
  if not inked.any():
    return [0.0, 0.0, float(images.shape[1]), float(images.shape[2])]
  edges = []
  for axis in (2, 1):
    lines = inked.any(axis=axis)[inked.any(axis=(1, 2))]
    first, beyond = lines.argmax(axis=1), lines.shape[1] - lines[:, ::-1].argmax(axis=1)
    edges.append((float(np.median(first)), float(np.median(beyond))))
  (top, bottom), (left, right) = edges
  return [top, left, bottom, right]


def float16_bytes(params: dict[str, np.ndarray]) -> bytes:
  """Arrays as float16: all low bytes, then all high bytes, which compress better separately."""
  numbers = np.concatenate([np.zeros(0), *(array.ravel() for array in params.values())])
  if np.abs(numbers).max(initial=0) > MAX_FLOAT16:
    raise ValueError(f"the page has float16 numbers, and one is larger than {MAX_FLOAT16:.0f}.")
  return numbers.astype("<f2").view(np.uint8).reshape(-1, 2).T.tobytes()


def deflated(content: bytes) -> str:
  """Compressed and in base64, as `inflate` in weights.js reads it."""
  return base64.b64encode(zlib.compress(content, 9)).decode()


def script(names: tuple[str, ...]) -> str:
  """The JavaScript modules joined into one, without imports and exports."""
  parts = []
  for name in names:
    text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    text = re.sub(r"^import \{[^}]*\} from \"[^\"]*\";\n", "", text, flags=re.MULTILINE)
    parts.append(f"// {name}.js\n" + re.sub(r"^export ", "", text, flags=re.MULTILINE))
  return "\n".join(parts)


def fill(template: str, **texts: str) -> str:
  """The template with each `{{name}}` replaced by its text."""
  return re.sub(r"\{\{(\w+)\}\}", lambda place: texts[place[1]], template)


def _shapes(arrays: dict[str, np.ndarray]) -> dict[str, list[int]]:
  return {name: list(array.shape) for name, array in arrays.items()}


def _bytes(colours: np.ndarray) -> list[list[int]]:
  return np.round(255 * colours).astype(int).tolist()


def _in_unit_square(points: np.ndarray) -> np.ndarray:
  """Points [n, 2] moved into [0, 1], with the same scale on both axes."""
  low, high = points.min(axis=0), points.max(axis=0)
  return 0.5 + (points - (low + high) / 2) / max(float((high - low).max()), 1e-6)
