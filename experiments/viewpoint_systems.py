"""The viewpoint report: every system on the same images, trained upright or on turned ones.

The question is that of an article by Kevin Vu, "Fixing a Major Weakness in Machine Learning of
Images with Hinton's Capsule Networks": what does a network that was trained on upright digits make
of turned ones? Each system is trained twice, the second time with `data.max_rotation` at
`TRAINED_ROTATION`, and scored on test images turned by each of `ANGLES`, and moved by affNIST's
maps.

`digits` is small enough for two CPU cores. Its baseline has an eighth of the channels and of the
hidden units of configs/cnn.py:baseline, and its matrix capsules are narrow ones.

`mnist` has the images of the expanded set, 40x40 pixels and shifted by up to 6, and wants a GPU.
Layers are as wide as published, but the dense ones see more positions than on 28x28: LeNet-5 has
107,786 parameters (44,426), the CNN baseline 69,704,466 (35,445,522), CapsNet 13,475,648
(8,215,568). Matrix capsules have 68,308 on either, SCAE 3,540,823.

`mnist_small` has MNIST as it is, 28x28 pixels and shifted by up to 2, for two CPU cores: LeNet-5 as
published, and the narrow ones of the others that have labels. Of it LeNet-5 and CapsNet have been
trained (results/viewpoint).
"""

# Degrees either way, of training images. The test angles of the article, 15 and 35, are within.
TRAINED_ROTATION = 45.0
# Degrees, counter-clockwise.
ANGLES = (0, 5, 10, 15, 20, 25, 30, 35, 45, 60, 75, 90, 105, 120, 135, 150, 165, 180)

# Of every system, for each set.
SHARED = {
  "digits": {"data.name": "digits", "data.canvas": 20, "data.max_shift": 2},
  "mnist": {"data.name": "mnist", "data.canvas": 40, "data.max_shift": 6},
  "mnist_small": {"data.name": "mnist", "data.canvas": 28, "data.max_shift": 2},
}
# For each set the systems: their name, the config, and what is changed in it.
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
  "mnist_small": {
    "lenet5": ("configs/cnn.py:lenet5", {}),
    "cnn": ("configs/cnn.py:small", {}),
    "capsnet": ("configs/capsnet.py:small", {}),
    "matrix_capsules": (
      "configs/matrix_capsules.py:mnist_small",
      {
        # As results/supervised has it of coordinate addition, and longer.
        "model.primary_types": 4,
        "model.first_types": 8,
        "model.normalize_poses": True,
        "model.inverse_temperature_limit": 0.03,
        "loss.margin_scale": 200.0,
        "train.num_steps": 5_000,
        "train.batch_size": 32,
        "train.steps_per_dispatch": 20,
        "optimizer.schedule": "cosine",
        "optimizer.decay_steps": 0,
      },
    ),
  },
}
