"""Convolutional networks without capsules: presets `lenet5`, `baseline`, `small`, `digits`.

    python train.py --config=configs/cnn.py:lenet5 --config.data.dir=$TFDS_DATA_DIR

`lenet5` is LeNet-5 on MNIST as the article of experiments/viewpoint_systems.py trains it: Adam at
1e-4, batches of 8, shifts of up to 2 pixels, ten epochs. 1.3 minutes of steps on two cores of an
Intel Xeon; 98.69 % (sd 0.10) of the test digits, and 72.3 of those turned by 35 degrees, seeds 0, 1
and 2 (results/supervised, 2026-11-22). `baseline` is the convolutional network that CapsNet was
compared with, 35,445,522 parameters, for a GPU; the paper trains it with Adam on images shifted by
up to 2 pixels, and the rest is as in configs/capsnet.py. `small` is the baseline with an eighth of
the channels and of the hidden units, 554,883 parameters, and two epochs long, for two CPU cores; it
has not been trained yet. `digits` is LeNet-5 on the embedded digits.
"""

from ml_collections import ConfigDict

from configs import digits

PRESETS = ("lenet5", "baseline", "small", "digits")


def get_config(preset: str = "lenet5") -> ConfigDict:
  """The config of a preset.

  Raises:
    ValueError: there is no such preset.
  """
  preset = preset or "lenet5"
  if preset not in PRESETS:
    raise ValueError(f"no preset {preset!r}; expected one of {', '.join(PRESETS)}")
  config = _lenet5()
  if preset in ("baseline", "small"):
    config = _baseline(config)
  if preset == "small":
    config.update_from_flattened_dict(SMALL)
  return _digits(config) if preset == "digits" else config


SMALL = {
  "model.widths": (32, 32, 16),
  "model.hidden": (41, 24),
  "train.num_steps": 1_000,
  "train.log_every": 100,
}


def _lenet5() -> ConfigDict:
  # Keys of the sections that are not listed here are explained in configs/digits.py.
  config = digits.shared_sections("cnn")

  config.model = ConfigDict()
  config.model.widths = (6, 16)  # channels of the convolutions
  config.model.kernel = 5  # pixels
  config.model.padding = "valid"  # valid or same
  config.model.pool = 2  # side of the squares that are averaged, pixels; 1 is none
  config.model.hidden = (120, 84)  # units of the dense layers but the last
  config.model.dropout = 0.0  # share of the last hidden units

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
  return config


def _baseline(config: ConfigDict) -> ConfigDict:
  config.model.widths = (256, 256, 128)
  config.model.padding = "same"
  config.model.pool = 1
  config.model.hidden = (328, 192)
  config.model.dropout = 0.5
  config.train.num_steps = 50_000
  config.train.batch_size = 128
  config.train.steps_per_dispatch = 100
  config.train.log_every = 500
  config.optimizer.learning_rate = 1e-3
  config.optimizer.schedule = "exponential"
  config.optimizer.decay_steps = 2_000
  config.optimizer.decay_rate = 0.96
  return config


def _digits(config: ConfigDict) -> ConfigDict:
  config.data.name = "digits"
  config.data.canvas = 20
  config.train.num_steps = 10_000
  config.train.batch_size = 32
  config.train.log_every = 1_000
  config.train.eval_every = 1_000
  config.train.checkpoint_every = 5_000
  config.optimizer.learning_rate = 1e-3
  return config
