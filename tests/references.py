"""The mathematics in NumPy and SciPy: float64, one number at a time where possible."""

import itertools

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params
from scipy import ndimage, signal, stats
from scipy.special import expit, log_expit, log_softmax, logsumexp

LOG_DUMMY = np.log(0.01)
IDENTITY = np.eye(2, 3)


def affine_reference(raw):
  """Kosiorek et al. 2019, appendix A, as documented in `affine_matrix`, in float64."""
  sx, sy, theta, shear, tx, ty = np.asarray(raw, np.float64)
  sx, sy, theta = expit(sx) + 0.01, expit(sy) + 0.01, 2 * np.pi * theta
  shear, tx, ty = np.tanh(5 * shear), np.tanh(5 * tx), np.tanh(5 * ty)
  c, s = np.cos(theta), np.sin(theta)
  return np.array([[sx * c + shear * sy * s, -sx * s + shear * sy * c, tx], [sy * s, sy * c, ty]])


def similarity_reference(raw):
  """An affine map of two equal scales, without shear."""
  return affine_reference(np.asarray(raw)[[0, 0, 2, 3, 4, 5]] * [1, 1, 1, 0, 1, 1])


def square(pose):
  """The 3x3 matrix of a pose, float64."""
  return np.vstack([np.asarray(pose, np.float64), [0, 0, 1]])


def reference_warp(template, pose, height, width):
  """As documented in `scae_jax.math.warping`: pixel p is the template at pose^-1 p; float64."""
  template = np.asarray(template, np.float64)
  inverse = np.linalg.inv(square(pose))
  y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
  u, v, _ = np.einsum("ij,jhw->ihw", inverse, np.stack([x, y, np.ones_like(x)]))
  side = template.shape[0]
  # Two rings of zeros, so that interpolation between the template and nothing is SciPy's too.
  padded = np.pad(template, ((2, 2), (2, 2), (0, 0)))
  coordinates = [(v + 1) / 2 * (side - 1) + 2, (u + 1) / 2 * (side - 1) + 2]
  planes = [
    ndimage.map_coordinates(padded[..., c], coordinates, order=1, mode="constant", cval=0.0)
    for c in range(template.shape[-1])
  ]
  return np.stack(planes, axis=-1)


def random_pose(rng):
  """Scales 0.3 to 1.2, any turn, shear and shifts that push some of the template out."""
  scale_x, scale_y = rng.uniform(0.3, 1.2, 2)
  angle, shear = rng.uniform(-np.pi, np.pi), rng.uniform(-0.5, 0.5)
  turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
  linear = np.array([[scale_x, shear], [0, scale_y]]) @ turn
  return np.column_stack([linear, rng.uniform(-0.8, 0.8, 2)]).astype(np.float32)


def reference_over(colours, alphas):
  """The seed, section 2.1: each layer is drawn on top of what is there, from black on."""
  picture = np.zeros(colours.shape[1:])
  for colour, alpha in zip(colours, alphas, strict=True):
    picture = colour * alpha[..., None] + picture * (1 - alpha[..., None])
  return picture


def reference_edges(image):
  """Down the rows first, across the columns second; SciPy's `mirror` repeats no border pixel."""
  planes = np.moveaxis(np.asarray(image, np.float64), -1, 0)
  edges = [[ndimage.sobel(p, axis=axis, mode="mirror") for axis in (0, 1)] for p in planes]
  return np.moveaxis(np.array(edges), (0, 1), (2, 3))


def reference_routing(part_poses, votes, scale, presence, normalize_mixing):
  """Kosiorek et al. 2019, equation 5, one number at a time: log-probability and posterior."""
  part_poses, votes, scale, presence = (
    np.asarray(x, np.float64) for x in (part_poses, votes, scale, presence)
  )
  num_objects, num_parts = scale.shape
  log_prob = np.zeros(num_parts)
  posterior = np.zeros((num_objects + 1, num_parts))
  for m in range(num_parts):
    # A presence of 0 has the logarithm of 1e-16, so that gradients stay finite.
    log_mixing = [np.log(max(presence[k, m], 1e-16)) for k in range(num_objects)] + [LOG_DUMMY]
    if normalize_mixing:
      log_mixing = log_mixing - logsumexp(log_mixing)
    log_density = [
      sum(stats.norm.logpdf(part_poses[m, i], votes[k, m, i], scale[k, m]) for i in range(6))
      for k in range(num_objects)
    ] + [LOG_DUMMY]
    joint = np.array(log_mixing) + np.array(log_density)
    log_prob[m] = logsumexp(joint)
    posterior[:, m] = np.exp(joint - log_prob[m])
  return log_prob, posterior


def reference_agreement(predictions, iterations):
  """Procedure 1 of the paper, in float64."""
  predictions = np.asarray(predictions, np.float64)
  history, logits = [], np.zeros(predictions.shape[:2])
  for _ in range(iterations):
    coupling = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    s = np.einsum("nk,nkd->kd", coupling, predictions)
    length = np.linalg.norm(s, axis=1, keepdims=True)
    parents = length**2 / (1 + length**2) * s / length
    history.append((parents, coupling, np.sum(predictions * parents, axis=2)))
    logits = logits + history[-1][2]
  return history


def reference_sparsity(presence, masses, num_classes):
  """Kosiorek et al. 2019, section 2.3: l2 of presences [b, k], entropies of masses [b, k]."""
  (num_examples, num_objects), shares = presence.shape, np.asarray(masses, np.float64)
  return {
    "prior_within": np.mean((presence.sum(axis=1) - num_objects / num_classes) ** 2),
    "prior_between": np.mean((presence.sum(axis=0) - num_examples / num_classes) ** 2),
    "posterior_within": np.mean([stats.entropy(row) for row in shares]),
    "posterior_between": -stats.entropy(shares.sum(axis=0)),
  }


def reference_points(points, votes, scale, presence):
  """Kosiorek et al. 2019, equations 2 to 4, one number at a time: log-probability, posteriors."""
  points, votes, scale, presence = (
    np.asarray(x, np.float64) for x in (points, votes, scale, presence)
  )
  components = list(np.ndindex(scale.shape))
  weights = np.array([max(presence[kv], 1e-16) for kv in components] + [0.01])
  log_prob = np.zeros(len(points))
  posterior = np.zeros((len(components) + 1, len(points)))
  for n, point in enumerate(points):
    density = [
      stats.multivariate_normal.logpdf(point, votes[kv], scale[kv] ** 2 * np.eye(2))
      for kv in components
    ] + [LOG_DUMMY]
    joint = np.log(weights / weights.sum()) + density
    log_prob[n] = logsumexp(joint)
    posterior[:, n] = np.exp(joint - log_prob[n])
  return log_prob, posterior


def reference_concrete(value_logit, logit, temperature):
  """log density of a binary concrete variable, Maddison et al. 2016, appendix B.

  For x in (0, 1), location a and temperature t: t a x^(-t-1) (1-x)^(-t-1) / (a x^-t +
  (1-x)^-t)^2; times x (1 - x), the derivative of the sigmoid, for the density of the logit of x.
  """
  log_on, log_off = log_expit(value_logit), log_expit(-value_logit)
  t = temperature
  log_density = np.log(t) + logit - (t + 1) * (log_on + log_off)
  log_density -= 2 * np.logaddexp(logit - t * log_on, -t * log_off)
  return log_density + log_on + log_off


def reference_normal(pose, mean, scale):
  return stats.norm.logpdf(np.ravel(pose), np.ravel(mean), scale).sum()


def reference_vote(parent_pose, offset):
  """A child's pose by its parent: 3x3 matrices, equation 5."""
  return (square(parent_pose) @ square(IDENTITY + offset))[:2]


def reference_choices(parents, relations):
  """Equation 3: log probability of every choice, [k+1, m], the dummy last."""
  weights = expit(parents.presence_logits)[:, None] * np.exp(relations.affinity_logits)
  weights = np.vstack([weights, np.full(weights.shape[1], np.exp(relations.dummy_logit))])
  return np.log(weights / weights.sum(axis=0))


def reference_child(children, parents, relations, choice, child, off=None):
  """Equations 4 to 6: log density of one child's presence and pose given its choice.

  Where `off` [m] is given, it is the log density of a pose of a child that is off.
  """
  num_parents = len(parents.poses)
  logit, pose = children.presence_logits[child], children.poses[child]
  log_prob = reference_concrete(
    logit, relations.presence_logits[choice, child], relations.temperature
  )
  if_on = if_off = reference_normal(pose, IDENTITY, relations.broad_scale)
  if choice < num_parents:
    vote = reference_vote(parents.poses[choice], relations.offsets[choice, child])
    if_on = reference_normal(pose, vote, relations.scales[choice, child])
  if off is not None:
    if_off = off[child]
  on = expit(logit)
  return log_prob + logsumexp([if_on, if_off], b=[on, 1 - on])


def reference_selection(children, parents, relations, off=None):
  """log p(children | parents) and the posterior of choices, by all (k+1)^m joint choices."""
  choices = reference_choices(parents, relations)
  count, num_children = choices.shape
  log_joint = {}
  for assignment in itertools.product(range(count), repeat=num_children):
    log_joint[assignment] = sum(
      choices[choice, child] + reference_child(children, parents, relations, choice, child, off)
      for child, choice in enumerate(assignment)
    )
  assert len(log_joint) == count**num_children
  total = logsumexp(list(log_joint.values()))
  posterior = np.zeros((count, num_children))
  for assignment, value in log_joint.items():
    for child, choice in enumerate(assignment):
      posterior[choice, child] += np.exp(value - total)
  return total, posterior


def in_float64(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def squash_reference(x, nonlinearity):
  return expit(x) if nonlinearity == "sigmoid" else np.clip(x, 0, 1)


STARTS = {"sigmoid": (0, -2), "relu1": (0.99, 0.01)}  # of the colours of ink and ground


def reference_colours(params, features, options, channels):
  """Colours [m, c] of the parts of one example, or [m, 2 c]: of ink and ground."""
  if not options["colour"]:
    return np.ones((len(features), channels))
  mlp = jax.tree.map(lambda p: np.asarray(p, np.float64), params["colour_mlp"])
  hidden = np.maximum(features @ mlp["dense_0"]["kernel"] + mlp["dense_0"]["bias"], 0)
  raw = hidden @ mlp["dense_1"]["kernel"] + mlp["dense_1"]["bias"]
  # relu1 starts just below 1 or above 0, where it has a gradient; the paper does not say.
  start = np.where(np.arange(raw.shape[1]) < channels, *STARTS[options["nonlinearity"]])
  return squash_reference(raw + start, options["nonlinearity"])


def reference_picture(params, poses, presence, features, options, canvas):
  """Kosiorek et al. 2019, section 2.2, one example: means and log mixing, background too."""
  templates = squash_reference(np.asarray(params["templates"], np.float64), options["nonlinearity"])
  channels = templates.shape[-1]
  colours = reference_colours(params, np.asarray(features, np.float64), options, channels)
  means, logits = [], []
  for m, template in enumerate(templates):
    warped = reference_warp(template, poses[m], canvas, canvas)
    ground = colours[m, channels:] if colours.shape[1] > channels else 0
    means.append(warped * colours[m, :channels] + (1 - warped) * ground)
    if options["mixing"] == "alpha":
      logits.append(reference_warp(params["alphas"][m], poses[m], canvas, canvas)[..., 0])
    else:
      temperature = np.log1p(np.exp(params["temperature"] + 0.5)) + 1e-4
      # One logit a pixel: channels are averaged.
      logits.append(means[-1].mean(axis=-1) / temperature)
    logits[-1] = logits[-1] + np.log(max(presence[m], 1e-16))
  means.append(np.full((canvas, canvas, channels), expit(params["background_mean"])))
  logits.append(np.full((canvas, canvas), np.log1p(np.exp(params["background_logit"]))))
  return np.stack(means), log_softmax(np.stack(logits), axis=0)


def correlate(maps, kernel, bias, stride=1, mode="valid"):
  """Convolution of maps [b, h, w, c] in float64, plane by plane: [b, h', w', d]."""
  kernel = np.asarray(kernel, np.float64)
  planes = [
    [
      sum(
        signal.correlate2d(image[..., c], kernel[..., c, d], mode) for c in range(image.shape[-1])
      )
      for d in range(kernel.shape[-1])
    ]
    for image in np.asarray(maps)
  ]
  return np.moveaxis(planes, 1, -1)[:, ::stride, ::stride] + bias


def assert_slope(run, inputs, rng, step, **tolerances):
  """In float64, the slope along a random direction of all inputs equals a finite difference.

  `run` gives value and gradient: compiling is what takes time, and `check_grads` compiles thrice.
  """
  inputs = jax.device_get(inputs)  # NumPy compiles nothing
  direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), inputs)
  (ahead, _), (behind, _) = (
    run(jax.tree.map(lambda x, d, move=move: x + move * d, inputs, direction))
    for move in (step, -step)
  )
  assert ahead.dtype == np.float64
  products = jax.tree.map(lambda g, d: np.sum(g * d), jax.device_get(run(inputs)[1]), direction)
  slope, difference = sum(jax.tree.leaves(products)), (ahead - behind) / (2 * step)
  np.testing.assert_allclose(slope, difference, **tolerances)


def equations(jaxpr):
  """All equations of a program, including those of inner functions."""
  for equation in jaxpr.eqns:
    yield equation
    for inner in jaxprs_in_params(equation.params):
      yield from equations(inner)


def product_precisions(jaxpr):
  """The precision of every matrix product of a program."""
  products = (equation for equation in equations(jaxpr) if equation.primitive.name == "dot_general")
  return [product.params["precision"] for product in products]
