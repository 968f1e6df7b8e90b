"""Probabilistic capsules on the embedded digits and MNIST: Smith et al. 2020, arXiv 2004.03553.

    python train.py --config=configs/probabilistic.py:digits
    python train.py --config=configs/probabilistic.py:digits_variational
    python train.py --config=configs/probabilistic.py:mnist

`digits` has point estimates of poses: fifteen minutes on one core of an Intel Xeon. A linear
classifier finds 93.3 % of the test digits from presences and poses, 90.3 from presences (seed 0,
2026-11-22). `digits_variational` continues its run, in runs/probabilistic-digits, with Gaussian
posteriors of poses: four minutes, 94.2 and 90.3 (results/probabilistic).

`recovery` trains on images that experiments/recovery.py draws from a known model of three objects.
`recovery_annealed` continues its run: a quarter of an hour together, 95.2, 95.3 and 93.8 % of
presences right, seeds 0, 1 and 2.

`mnist` has 24 parts and 32x32 pixels: an hour on one core of an EPYC, 98.1 % from presences and
poses, 90.8 from presences (seed 0, 2026-11-26). `mnist_variational` continues its run as above and
has not been trained yet.
"""

from ml_collections import ConfigDict

import configs
from configs import digits

VARIATIONAL = {
  "model.poses": "gaussian",
  "loss.schedule.latents": (),
  "train.num_steps": 4_000,
  "train.start_from": "runs/probabilistic-digits",
  "optimizer.learning_rate": 5e-4,
}
# Images drawn from a known model by experiments/recovery.py.
RECOVERY = {
  # Twice as many parts and one object more than in the true model: unneeded capsules are off.
  "model.capsules": (12, 4),
  "model.off_poses": "summed_out",
  "model.generative.pixel_scale": 0.1,
  # That of the true model. With a smaller prior, present objects have presences below 0.5: relaxed,
  # these suffice to win over the dummy.
  "model.generative.top_presence": 0.5,
  "model.object_inference.num_layers": 1,
  # Rises from the start: after thousands of steps without a gradient, Adam's first steps would be
  # several times as large as the learning rate and saturate the set transformer permanently.
  "loss.schedule.latents": ((0, 0.0), (3_000, 1.0)),
  # At a high temperature no object wins a part; as it falls, choices are made one after another.
  # With a temperature of 1 from the start, one object wins all parts.
  "loss.choice_temperature": ((0, 4.0), (6_000, 4.0), (12_000, 1.0)),
  "data.name": "folder",
  "data.dir": "runs/recovery-scenes",
  "data.max_shift": 0,
  "train.num_steps": 14_000,
}
# Continues `recovery` with its parts: choices are annealed again, now with presences above the
# parts that are close to 0 or 1, so that objects that are off are not chosen. Used from the start,
# this leads to worse parts.
ANNEALED = RECOVERY | {
  "model.generative.upper_temperature": 0.25,
  "loss.schedule.latents": (),
  "loss.choice_temperature": ((0, 4.0), (1_500, 4.0), (5_000, 1.0)),
  "train.num_steps": 9_000,
  "train.start_from": "runs/probabilistic-recovery",
}
MNIST = {
  "model.capsules": (24, 24),
  "model.generative.template_size": 9,
  "model.part_inference.widths": (32, 32, 32, 32),
  "model.part_inference.strides": (2, 2, 1, 1),
  "data.name": "mnist",
  "data.canvas": 32,
  "train.num_steps": 24_000,
  # At 2e-3 training is unstable, and the part encoder can die (results/probabilistic).
  "optimizer.learning_rate": 1e-3,
}
MNIST_VARIATIONAL = {
  "train.num_steps": 8_000,
  "train.start_from": "runs/probabilistic-mnist",
}
PRESETS = {
  "digits": {},
  "digits_variational": VARIATIONAL,
  "recovery": RECOVERY,
  "recovery_annealed": ANNEALED,
  "mnist": MNIST,
  "mnist_variational": MNIST | VARIATIONAL | MNIST_VARIATIONAL,
}


def get_config(preset: str = "") -> ConfigDict:
  """The config of a preset; ValueError if it is unknown."""
  # configs/digits.py explains the keys that are not set here.
  config = digits.shared_sections("probabilistic")

  config.model = ConfigDict()
  config.model.capsules = (16, 24)  # of each layer, the parts first
  config.model.poses = "delta"  # posteriors of poses: delta or gaussian
  config.model.num_samples = 1  # of the estimate of the bound
  # Poses of children that are off: broad, as the article has them, or summed_out.
  config.model.off_poses = "broad"

  generative = config.model.generative = ConfigDict()
  generative.template_size = 7  # pixels
  generative.nonlinearity = "sigmoid"  # sigmoid or relu1
  generative.pixel_scale = 0.2  # standard deviation
  generative.temperature = 0.5  # of the parts' relaxed presences
  generative.upper_temperature = 0.5  # of those of all layers above
  generative.top_presence = 0.2  # prior probability of a top capsule
  generative.top_scale = 0.3  # standard deviation of its pose around the identity
  generative.dummy_affinity = 0.05  # affinities of parents start at 1
  # Limit of the parents' affinities; 0 is none. Without one a parent that is off wins over the
  # dummy, and no presence depends on the image.
  generative.max_affinity = 2.0
  generative.broad_scale = 0.5  # standard deviation of poses that no parent determines
  generative.min_scale = 0.03  # least standard deviation of a child's pose given its parent
  generative.initial_scale = 0.3  # initial value of that standard deviation
  generative.shared_scales = True  # all parents of a child share its standard deviations

  posterior = config.model.posterior = ConfigDict()  # of Gaussian poses
  posterior.min_scale = 1e-3  # least standard deviation
  posterior.initial_scale = 0.05  # approximate initial value

  parts = config.model.part_inference = ConfigDict()
  parts.widths = (24, 24, 24, 24)  # convolution channels
  parts.strides = (2, 1, 1, 1)
  parts.min_part_scale = 0.2  # of the side of the image

  objects = config.model.object_inference = ConfigDict()
  objects.num_layers = 3  # induced attention blocks
  objects.num_heads = 2
  objects.features = 32  # width of the blocks
  objects.num_inducing = 16  # 0 is full self-attention
  objects.output_features = 64  # of each object's encoding
  objects.hidden = 64  # of each object's MLP

  config.loss = ConfigDict()
  schedule = config.loss.schedule = ConfigDict()
  schedule.latents = ((0, 0.0), (2_000, 1.0))  # factors of all terms but pixels, by step
  config.loss.choice_temperature = ()  # of choices of parents, by step; () is 1 throughout

  config.train.num_steps = 14_000
  return configs.preset(config, PRESETS, preset)
