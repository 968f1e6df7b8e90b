"""SCAE on the embedded digits: scikit-learn's 1,797, upsampled to 16x16, in a 20x20 canvas.

    python train.py

About 11 minutes on two busy CPU cores (seeds 0 and 1). LIN-MATCH on the 360 test digits, seeds 0, 1
and 2: 93.3, 75.3 and 78.6 % by posterior mass, 93.1, 77.8 and 77.5 % by prior presences; k-means on
the pixels 74 % (results/digits, 2026-11-20, which says what these figures are not).

What differs from the paper: everything is smaller; Adam under a cosine instead of RMSProp; and the
deformations of objects cost 30 times, posterior sparsity 3 times as much. While part-object
relations may bend freely, one object explains every digit by bending; stiff ones need different
objects for different digits, early.
"""

from ml_collections import ConfigDict


def get_config(preset: str = "modern") -> ConfigDict:
  """The one preset, `modern`.

  Raises:
    ValueError: another preset was asked for.
  """
  if preset not in ("", "modern"):
    raise ValueError(f"configs/digits.py has no preset {preset!r}; expected modern")
  config = ConfigDict()
  config.system = "scae"

  config.model = ConfigDict()
  config.model.num_parts = 16
  config.model.num_objects = 16
  config.model.target = "image"  # what parts draw: image or sobel
  config.model.reconstruction_vote = "encoder"  # encoder, soft or hard
  config.model.reconstruction_presence = "encoder"  # encoder, soft or hard
  config.model.normalize_mixing = False  # of the part mixture
  config.model.stop_gradients = True  # parts are constants for the object half

  encoder = config.model.part_encoder = ConfigDict()
  encoder.widths = (24, 24, 24, 24)  # convolution channels
  encoder.strides = (2, 1, 1, 1)
  encoder.num_features = 16  # special features of a part
  encoder.pooling = "attention"  # attention, mean or linear
  encoder.presence_noise = 4.0  # width of the uniform noise on logits
  encoder.noise_in_evaluation = False
  encoder.similarity = False  # similarity transforms instead of affine ones

  decoder = config.model.part_decoder = ConfigDict()
  decoder.template_size = 7  # pixels
  decoder.nonlinearity = "sigmoid"  # sigmoid or relu1
  decoder.mixing = "alpha"  # alpha or coupled
  decoder.colour = True
  decoder.pixel_scale = 1.0  # standard deviation

  objects = config.model.object_encoder = ConfigDict()
  objects.kind = "set_transformer"  # set_transformer or mlp
  objects.output_features = 64
  objects.num_layers = 3
  objects.num_heads = 1
  objects.features = 16
  objects.num_inducing = 0  # 0 is full self-attention
  objects.mask = "log_presence"  # log_presence, hard or none

  votes = config.model.object_decoder = ConfigDict()
  votes.hidden = 64
  votes.capsule_features = 32
  votes.presence_noise = 4.0
  votes.noise_in_evaluation = False
  votes.similarity = False
  votes.deformations = True
  votes.learn_vote_scale = True

  config.loss = ConfigDict()
  config.loss.prior = "l2"  # sparsity of presences: l2, entropy or kl
  config.loss.prior_within_constant = 0.0  # capsules on an example; 0 is K / C
  config.loss.posterior = "entropy"  # sparsity of the posterior mass
  weights = config.loss.weights = ConfigDict()
  weights.image = 1.0
  weights.parts = 1.0
  weights.prior_within = 10.0
  weights.prior_between = 2.0
  weights.posterior_within = 30.0
  weights.posterior_between = 30.0
  weights.dynamic = 300.0
  weights.prior_probe = 1.0
  weights.posterior_probe = 1.0

  config.data = ConfigDict()
  config.data.name = "digits"
  config.data.dir = ""  # "" is the source's default
  config.data.cache_dir = ""  # "" is ~/.cache/scae_jax
  config.data.num_validation = 0  # held out of training; 0 judges on the test split
  config.data.canvas = 20  # pixels
  config.data.max_shift = 2  # pixels

  config.train = ConfigDict()
  config.train.num_steps = 22_000
  config.train.batch_size = 64
  config.train.seed = 0
  config.train.steps_per_dispatch = 100
  config.train.log_every = 500
  config.train.eval_every = 1_000
  config.train.checkpoint_every = 1_000
  config.train.keep_checkpoints = 2
  config.train.tensorboard = False

  config.optimizer = ConfigDict()
  config.optimizer.name = "adam"  # adam or rmsprop
  config.optimizer.learning_rate = 2e-3
  config.optimizer.schedule = "cosine"  # constant, exponential or cosine
  config.optimizer.warmup_steps = 0
  config.optimizer.decay_steps = 22_000  # cosine: until the end
  config.optimizer.decay_rate = 0.85
  config.optimizer.end_factor = 0.0  # of the learning rate
  config.optimizer.momentum = 0.9  # rmsprop
  config.optimizer.decay = 0.9  # rmsprop
  config.optimizer.b1 = 0.9  # adam
  config.optimizer.b2 = 0.999  # adam
  config.optimizer.epsilon = 1e-8
  config.optimizer.clip_norm = 0.0  # 0 is off

  config.evaluation = ConfigDict()
  config.evaluation.batch_size = 256
  config.evaluation.max_examples = 0  # 0 is all
  return config
