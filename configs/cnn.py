"""Convolutional networks without capsules: presets `lenet5`, `baseline`, `small`, `digits`.

    python train.py --config=configs/cnn.py:lenet5 --config.data.dir=$TFDS_DATA_DIR

`lenet5` is LeNet-5 on MNIST as in the article that experiments/viewpoint.py reproduces: Adam at
1e-4, batches of 8, shifts of up to 2 pixels, ten epochs. 1.3 minutes of steps on two cores of an
Intel Xeon; 98.69 % (sd 0.10) of the test digits, and 72.3 % of those rotated by 35 degrees, seeds
0, 1 and 2 (results/supervised, 2026-11-22). `baseline` is the convolutional network that CapsNet
was compared with, 35,445,522 parameters, for a GPU; the paper trains it with Adam on images shifted
by up to 2 pixels, and the rest is as in configs/capsnet.py. `small` is the baseline with an eighth
of the channels and of the hidden units, 554,883 parameters, for two epochs on two CPU cores; it has
not been trained yet. `digits` is LeNet-5 on the embedded digits.
"""

from ml_collections import ConfigDict

import configs
from configs import digits

BASELINE = {
  "model.widths": (256, 256, 128),
  "model.padding": "same",
  "model.pool": 1,
  "model.hidden": (328, 192),
  "model.dropout": 0.5,
  "train.num_steps": 50_000,
  "train.batch_size": 128,
  "train.steps_per_dispatch": 100,
  "train.log_every": 500,
  "optimizer.learning_rate": 1e-3,
  "optimizer.schedule": "exponential",
  "optimizer.decay_steps": 2_000,
  "optimizer.decay_rate": 0.96,
}
SMALL = {
  "model.widths": (32, 32, 16),
  "model.hidden": (41, 24),
  "train.num_steps": 1_000,
  "train.log_every": 100,
}
DIGITS = {
  "data.name": "digits",
  "data.canvas": 20,
  "train.num_steps": 10_000,
  "train.batch_size": 32,
  "train.log_every": 1_000,
  "train.eval_every": 1_000,
  "train.checkpoint_every": 5_000,
  "optimizer.learning_rate": 1e-3,
}
PRESETS = {"lenet5": {}, "baseline": BASELINE, "small": BASELINE | SMALL, "digits": DIGITS}


def get_config(preset: str = "") -> ConfigDict:
  """The config of a preset; ValueError if it is unknown."""
  # configs/digits.py explains the keys that are not set here.
  config = digits.shared_sections("cnn")

  config.model = ConfigDict()
  config.model.widths = (6, 16)  # channels of the convolutions
  config.model.kernel = 5  # side of all kernels, pixels
  config.model.padding = "valid"  # valid or same
  config.model.pool = 2  # side of the squares that are averaged, pixels; 1 is no pooling
  config.model.hidden = (120, 84)  # units of the dense layers but the last
  config.model.dropout = 0.0  # share of the last hidden units that training drops

  config.loss = ConfigDict()
  config.loss.weights = ConfigDict()
  config.loss.weights.cross_entropy = 1.0
  config.loss.schedule = ConfigDict()  # factors of weights: ((step, factor), ...)
  config.loss.schedule.cross_entropy = ()

  config.data.name = "mnist"
  config.data.canvas = 28
  config.data.max_shift = 2
  config.train.num_steps = 75_000
  config.train.batch_size = 8
  config.train.steps_per_dispatch = 1_000
  config.train.log_every = 5_000
  config.train.eval_every = 5_000
  config.train.checkpoint_every = 25_000
  config.optimizer.learning_rate = 1e-4
  config.optimizer.schedule = "constant"
  config.evaluation.batch_size = 1_000
  return configs.preset(config, PRESETS, preset)
