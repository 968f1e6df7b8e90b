"""SCAE on CIFAR-10: configs/svhn.py with 32 parts and 64 objects, on another data set.

    python train.py --config=configs/cifar10.py

`paper` has 4,563,930 parameters and `alpha` 4,570,201, the published number.

On a CPU a step of 128 images takes less than three seconds of processor time (an Intel Xeon) and
the process 3.5 GiB at its peak. Not trained to its end with this code yet; the first 200 steps,
whose loss falls and whose pictures are still the background, are in results/cifar10 (2026-11-22).
"""

from ml_collections import ConfigDict

from configs import svhn

ABLATIONS = svhn.ABLATIONS


def get_config(preset: str = "") -> ConfigDict:
  """As `configs.svhn`."""
  config = svhn.get_config(preset)
  config.data.name = "cifar10"
  config.model.num_parts = 32
  config.model.num_objects = 64
  return config
