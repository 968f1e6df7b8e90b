"""The rotation experiment: what objects stand for when training images are turned ever further.

Of Smith et al. 2020, arXiv 2004.03553, section 5.3 and figure 4. Each system is trained once for
each of `RANGES`, with `data.max_rotation` at that many degrees; the rest is as its config and
`SHARED` have it. `digits` is small enough for two CPU cores; `mnist` wants a GPU. There the SCAE
has the loss of the authors' release and 24 parts and objects, as in the article's appendix C: with
more, several objects may share a digit by its turn.
"""

# Degrees either way, of training images, and of the images that a run is fitted to and scored on.
RANGES = (0, 30, 60, 90, 135, 180)

# Of every system, for each data set.
SHARED = {
  # A square of 16x16 pixels is up to 23 wide when it is turned.
  "digits": {"data.canvas": 24, "data.max_shift": 2},
  "mnist": {"data.canvas": 40, "data.max_shift": 6},
}
# For each data set the systems: their name, the config, and what is changed in it.
SYSTEMS = {
  "digits": {
    "scae": ("configs/digits.py", {}),
    "probabilistic": ("configs/probabilistic.py:digits", {}),
  },
  "mnist": {
    "scae": ("configs/mnist.py:official", {"model.num_parts": 24, "model.num_objects": 24}),
    "probabilistic": ("configs/probabilistic.py:mnist", {}),
  },
}
