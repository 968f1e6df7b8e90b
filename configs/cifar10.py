"""SCAE on CIFAR-10: configs/svhn.py with 32 parts and 64 objects, on another data set.

    python train.py --config=configs/cifar10.py

`paper` has 4,563,930 parameters and `alpha` 4,570,201, the published number.

A step takes 3.4 s of processor time on one core of an Intel Xeon, and the process 3.0 GiB at the
peak (batch 128, 2026-11-21; the core was shared, so the clock says nothing). Not trained to its end
with this code yet. The first 200 steps there, at batch 32 to save time:

    python train.py --config=configs/cifar10.py --config.train.batch_size=32 \
      --config.train.num_steps=200 --config.train.steps_per_dispatch=5 \
      --config.train.log_every=20 --config.train.eval_every=0 --config.train.checkpoint_every=0 \
      --config.data.num_validation=512 --config.evaluation.max_examples=500

The total falls from 6,595 (mean of steps 1 to 20) to 3,013 (181 to 200), the loss of an image from
2,908 to 2,877 nats. Most of that is sparsity; the background is still the likeliest component of
every pixel, as its mixing logit starts above those of the templates, and the figures show it.
"""

from ml_collections import ConfigDict

from configs import svhn

ABLATIONS = svhn.ABLATIONS


def get_config(preset: str = "paper") -> ConfigDict:
  """The config of a preset of `configs.svhn`.

  Raises:
    ValueError: there is no such preset.
  """
  config = svhn.get_config(preset)
  config.data.name = "cifar10"
  config.model.num_parts = 32
  config.model.num_objects = 64
  return config
