"""SCAE on CIFAR-10: presets `paper`, `alpha`, `modern` and `views`.

    python train.py --config=configs/cifar10.py:views

`paper` and `alpha` are those of configs/svhn.py with 32 parts and 64 objects, 4,563,930 and
4,570,201 parameters, the published number. On a CPU a step of 128 images takes almost three seconds
of processor time (an Intel Xeon); neither has been trained to its end yet.

`modern` is for a CPU: configs/mnist.py:modern with more objects, larger templates and fewer steps,
which see a quarter of the pixels. Its parts draw the pixels themselves, and start bright: edges are
not learned within hours on a CPU, and dim parts vanish. Pixels have a standard deviation of 0.3.
Objects do not deform, because the weight of deformations kills all their ReLUs. The gradient is
clipped; without that a run diverged after step 4,500 (results/cifar10 has the measurements).

`views` is larger (1,496,857 parameters), takes five to six times as long, and sees two views of
each image from its first step. Its weights let masses become sharp where they agree in both views,
see `scae_jax.math.sparsity.view_divergence`. Views differ in brightness and contrast, not in hue,
which helps to tell classes apart.

LIN-MATCH of `views` by mass is 22.9 % (one seed), of `modern` by presences 17.7 % (mean of three).
"""

from ml_collections import ConfigDict

import configs
from configs import mnist, svhn
from scae_jax.models import ablations

ABLATIONS = svhn.ABLATIONS
CIFAR10 = {
  "data.name": "cifar10",
  "model.num_parts": 32,
  "model.num_objects": 64,
}
MODERN = CIFAR10 | {
  "data.max_shift": 0,
  "model.part_decoder.template_size": 11,
  "model.part_decoder.bright_start": True,
  "model.part_decoder.pixel_scale": 0.3,
  "model.part_decoder.likelihood_stride": 2,
  "model.object_decoder.deformations": False,
  "model.feature_gradient": ((0, 1.0), (6_500, 1.0), (7_500, 0.0)),
  "loss.schedule.posterior_within": ((0, 2.5), (3_000, 5.0), (6_500, 5.0), (7_500, 2.0)),
  "train.num_steps": 9_000,
  "train.revive_idle": (5_000,),
  "optimizer.learning_rate": 1e-3,
  "optimizer.clip_norm": 2_000.0,
}
VIEWS = MODERN | {
  "data.two_views": True,
  "data.max_shift": 3,
  "data.max_rotation": 10.0,
  "data.max_stretch": 0.2,
  "data.brightness": 0.2,
  "data.contrast": 0.3,
  "model.part_encoder.widths": (64, 64, 64, 64),
  "model.object_encoder.num_heads": 2,
  "model.object_encoder.features": 64,
  "model.object_encoder.output_features": 128,
  "model.feature_gradient": ((0, 1.0), (26_000, 1.0), (28_000, 0.0)),
  "loss.weights.posterior_between": 150.0,
  "loss.weights.views": 24.0,
  "loss.schedule.posterior_within": (
    (0, 0.5),
    (2_000, 8.0),
    (5_000, 25.0),
    (26_000, 25.0),
    (28_000, 12.0),
  ),
  "train.num_steps": 30_000,
  "train.revive_idle": (),
  "optimizer.warmup_steps": 200,
}
PRESETS = {
  "paper": svhn.PRESETS["paper"] | CIFAR10,
  "alpha": svhn.PRESETS["alpha"] | CIFAR10,
  "modern": MODERN,
  "views": VIEWS,
}


def get_config(preset: str = "") -> ConfigDict:
  """The config of `PRESET` or `PRESET,ablation=NAME`; ValueError if either is unknown."""
  preset, names = ablations.split(preset)
  base = mnist.get_config("modern" if preset in ("modern", "views") else "paper")
  return ablations.apply(configs.preset(base, PRESETS, preset), names)
