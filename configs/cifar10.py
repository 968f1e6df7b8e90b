"""SCAE on CIFAR-10: configs/svhn.py with 32 parts and 64 objects, on another data set.

    python train.py --config=configs/cifar10.py

`paper` has 4,563,930 parameters and `alpha` 4,570,201, the published number. On a CPU a step of 128
images takes almost three seconds of processor time (an Intel Xeon); neither has been trained to its
end yet. `modern` and `views` (1,496,857 parameters) are for a CPU. LIN-MATCH of `views` by mass is
22.9 % (one seed), of `modern` by presences 17.7 % (mean of three; results/cifar10).
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
