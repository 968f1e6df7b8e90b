// Templates at their poses and the mixture at every pixel, as in warping.py, mixtures.py and
// routing/mixture.py in scae_jax/math.

import { invert, sigmoid } from "./geometry.js";

const MIN_PROB = 1e-16;
const HALF_LOG_2PI = 0.9189385332046727;
const DUMMY_LOG = Math.log(0.01); // log mixing weight and log density of the dummy object

export const safe_log = (prob) => Math.log(Math.max(prob, MIN_PROB));

export const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

// Values of templates in [0, 1]; `kind` is `sigmoid` or `relu1`.
export function to_unit_range(x, kind) {
  return kind === "sigmoid" ? sigmoid(x) : Math.min(Math.max(x, 0), 1);
}

export const argmax = (values) => values.reduce((best, v, i) => (v > values[best] ? i : best), 0);

export function logsumexp(values) {
  const most = values.reduce((a, b) => Math.max(a, b));
  return most + Math.log(values.reduce((sum, value) => sum + Math.exp(value - most), 0));
}

export function softmax(logits) {
  const total = logsumexp(logits);
  return logits.map((logit) => Math.exp(logit - total));
}

// One template [side, side, channels] as it appears in an image [canvas, canvas, channels]: pixel p
// has the template's value at pose^-1 p, bilinear, zero outside.
export function warp_template(template, side, channels, pose, canvas) {
  const [a, b, c, d, e, f] = invert(pose);
  const image = new Float32Array(canvas * canvas * channels);
  for (let i = 0; i < canvas * canvas; i++) {
    const x = -1 + (2 * (i % canvas)) / (canvas - 1);
    const y = -1 + (2 * Math.floor(i / canvas)) / (canvas - 1);
    const column = ((a * x + b * y + c + 1) * (side - 1)) / 2;
    const row = ((d * x + e * y + f + 1) * (side - 1)) / 2;
    const [left, top] = [Math.floor(column), Math.floor(row)];
    for (let s = Math.max(top, 0); s <= Math.min(top + 1, side - 1); s++) {
      for (let t = Math.max(left, 0); t <= Math.min(left + 1, side - 1); t++) {
        const weight = (1 - Math.abs(row - s)) * (1 - Math.abs(column - t));
        for (let j = 0; j < channels; j++) {
          image[i * channels + j] += weight * template[(s * side + t) * channels + j];
        }
      }
    }
  }
  return image;
}

export function normal_log_prob(value, mean, scale) {
  return -0.5 * ((value - mean) / scale) ** 2 - Math.log(scale) - HALF_LOG_2PI;
}

// Which object explains which part. `posterior` is [m][k + 1], the dummy last; `winner` is [m].
export function route(part_poses, votes, vote_scale, vote_presence, normalize_mixing) {
  const posterior = [];
  const winner = [];
  for (const [m, pose] of part_poses.entries()) {
    const log_density = votes.map((of_object, k) =>
      of_object[m].reduce((sum, x, i) => sum + normal_log_prob(pose[i], x, vote_scale[k][m]), 0),
    );
    const log_mixing = [...vote_presence.map((of_object) => safe_log(of_object[m])), DUMMY_LOG];
    const total = normalize_mixing ? logsumexp(log_mixing) : 0;
    const joint = [...log_density, DUMMY_LOG].map((density, k) => density + log_mixing[k] - total);
    posterior.push(softmax(joint));
    winner.push(argmax(joint.slice(0, -1)));
  }
  return { posterior, winner };
}

// Share of the parts that every object explains.
export function posterior_mass(posterior) {
  const num_objects = posterior[0].length - 1;
  return Array.from({ length: num_objects }, (_, k) =>
    posterior.reduce((sum, of_part) => sum + of_part[k] / posterior.length, 0),
  );
}
