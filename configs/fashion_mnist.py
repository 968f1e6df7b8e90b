"""SCAE on Fashion-MNIST: the presets of configs/mnist.py on another data set of the same form.

    python train.py --config=configs/fashion_mnist.py:modern
    python train.py --config=configs/fashion_mnist.py:views

The second continues the run of the first: LIN-MATCH 59.9 % by mass, one seed
(results/fashion_mnist).
"""

from ml_collections import ConfigDict

from configs import mnist

ABLATIONS = mnist.ABLATIONS


def get_config(preset: str = "") -> ConfigDict:
  """As `configs.mnist`."""
  config = mnist.get_config(preset)
  config.data.name = "fashion_mnist"
  # What continues a pretrained model of MNIST continues here the run that has its recipe.
  start = config.train.start_from.replace("pretrained/mnist", "runs/mnist-views_40")
  config.train.start_from = start.replace("runs/", "runs/fashion_")
  return config
