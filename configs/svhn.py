"""SCAE on SVHN: presets `paper`, `alpha`, `modern`, `views`, `quick`, `quick_views`.

    python train.py --config=configs/svhn.py:quick
    python train.py --config=configs/svhn.py:quick_views

In `paper` and `alpha` the encoder sees the pixels, 32x32 in colour, and the parts draw the
Sobel-filtered image, in colour. `paper` follows the paper: a part's mixing logits are its coloured
template ("coupled"). 2,380,074 parameters.

`alpha` has templates of mixing logits instead, as on MNIST. That is 2,384,777 parameters, the
published number; no other choice here gives it. If the published model had alpha templates, it had
these strides, 1, 1, 2, 2 (each other order is off by 1,000 or more), and this set transformer, 64
-> 128; a coupled model is 4,703 short of it.

Sparsity weights, decay and optimiser of both are those of configs/mnist.py:paper, with a learning
rate of 1e-4; images fill the canvas and are not shifted. Neither has been trained to its end.

The others are the presets of configs/mnist.py on other images: the middle 28 rows and 20 columns of
each photograph as bright ink on a dark ground (`scae_jax.data.ink`), so that neither colours,
contrast and polarity nor neighbours tell images apart. The second run continues the first. `quick`
and `quick_views` take 45 minutes of one core together; results/svhn has what they reach.
"""

from ml_collections import ConfigDict

import configs
from configs import mnist
from scae_jax.models import ablations

ABLATIONS = ablations.ABLATIONS
PAPER = {
  "data.name": "svhn_cropped",
  "data.canvas": 32,
  "data.max_shift": 0,
  "model.num_parts": 24,
  "model.num_objects": 32,
  "model.target": "sobel",
  "model.part_encoder.strides": (1, 1, 2, 2),
  "model.part_decoder.template_size": 14,
  "model.part_decoder.mixing": "coupled",
  "model.object_encoder.num_heads": 2,
  "model.object_encoder.features": 64,
  "model.object_encoder.output_features": 128,
  "optimizer.learning_rate": 1e-4,
}
INK = {
  "data.name": "svhn_cropped",
  "data.ink": True,
  "data.middle": (28, 20),
}
ON_INK = {
  "modern": INK,
  "views": INK | {"train.start_from": "runs/svhn-modern"},
  "quick": INK,
  "quick_views": INK | {"train.start_from": "runs/svhn-quick"},
}
PRESETS = {
  "paper": PAPER,
  "alpha": PAPER | {"model.part_decoder.mixing": "alpha"},
  **ON_INK,
}


def get_config(preset: str = "") -> ConfigDict:
  """The config of `PRESET` or `PRESET,ablation=NAME`; ValueError if either is unknown."""
  preset, names = ablations.split(preset)
  base = mnist.get_config(preset if preset in ON_INK else "paper")
  return ablations.apply(configs.preset(base, PRESETS, preset), names)
