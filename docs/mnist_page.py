"""Writes docs/pages/mnist.html: pretrained/mnist, with scikit-learn's digits to look at.

  python -m docs.mnist_page

MNIST's own digits are not this project's to give away. scikit-learn's are as large here as MNIST's
are, with as much contrast; the model was not trained on them, and names 82 % of them right.
"""

import pathlib

import jax
import numpy as np
from sklearn.datasets import load_digits

import scae_jax
from scae_jax.data.dataset import EvalDataset, Split
from scae_jax.page.write import write_page

PAGE = pathlib.Path(__file__).parent / "pages" / "mnist.html"
SIDE, BORDER = 20, 4  # of MNIST's digits, and of the black around them, pixels
DARKEST, GAIN = 0.3, 2.0  # of the contrast


def main() -> None:
  """Writes the page and says how many digits the model names right."""
  raw = load_digits()
  images = jax.image.resize(raw.images / 16, (len(raw.images), SIDE, SIDE), "lanczos3")
  images = np.clip(GAIN * (np.asarray(images) - DARKEST), 0, 1)
  images = np.pad(images, ((0, 0), (BORDER, BORDER), (BORDER, BORDER)))[..., None]
  split = Split(np.round(255 * images).astype(np.uint8), raw.target.astype(np.int32))
  model = scae_jax.load("mnist")
  right = np.mean(model.predict(split.images) == split.labels)
  print(f"of {len(raw.images)} digits {100 * right:.1f} % are named right")
  name = "MNIST, on scikit-learn's digits"
  write_page(model, EvalDataset(name, model.class_names, {"test": split}), PAGE)


if __name__ == "__main__":
  main()
