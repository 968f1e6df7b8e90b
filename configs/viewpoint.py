"""The viewpoint report: every system on the same images, trained upright or on turned ones.

    python -m results.viewpoint digits results/viewpoint
    python -m results.viewpoint mnist results/viewpoint

The question is that of the seed article: what does a network that was trained on upright digits
make of turned ones? A system is a config and what is changed in it; each is trained twice, the
second time with `data.max_rotation` at `TRAINED_ROTATION`, and scored on test images that are
upright, turned by each of `ANGLES`, and moved by affNIST's maps. `SHARED` is the same for all
systems of a data set, so that all see the same images: on MNIST those of the expanded set, 40x40
pixels and shifted by up to 6, not each system's own.

`digits` is the embedded digits, small enough for two CPU cores; `mnist` wants a GPU. The baseline
of `digits` has an eighth of the channels and of the hidden units of configs/cnn.py:baseline, and
its matrix capsules are narrow ones.
"""

# Degrees either way, of training images. The test angles of the article, 15 and 35, are within.
TRAINED_ROTATION = 45.0
# Degrees, counter-clockwise.
ANGLES = (0, 5, 10, 15, 20, 25, 30, 35, 45, 60, 75, 90, 105, 120, 135, 150, 165, 180)

# Of every system, for each data set.
SHARED = {
  "digits": {"data.canvas": 20, "data.max_shift": 2},
  "mnist": {"data.canvas": 40, "data.max_shift": 6},
}
# For each data set the systems: their name, the config, and what is changed in it.
SYSTEMS = {
  "digits": {
    "lenet5": ("configs/cnn.py:digits", {}),
    "cnn": (
      "configs/cnn.py:digits",
      {
        "model.widths": (32, 32, 16),
        "model.padding": "same",
        "model.pool": 1,
        "model.hidden": (41, 24),
        "model.dropout": 0.5,
        "train.num_steps": 2_000,
      },
    ),
    "capsnet": ("configs/capsnet.py:digits", {}),
    "matrix_capsules": ("configs/matrix_capsules.py:digits_narrow", {}),
    "scae": ("configs/digits.py", {}),
  },
  "mnist": {
    "lenet5": ("configs/cnn.py:lenet5", {}),
    "cnn": ("configs/cnn.py:baseline", {}),
    "capsnet": ("configs/capsnet.py:paper", {}),
    "matrix_capsules": ("configs/matrix_capsules.py:mnist_small", {}),
    "scae": ("configs/mnist.py:official", {}),
  },
}
