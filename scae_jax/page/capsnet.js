// CapsNet, one image at a time, as in scae_jax/models/capsnet.py. `model` is
// { params, options, canvas, channels }; options are the config's model section.

import { sigmoid } from "./geometry.js";
import { convolve, in_parts, mlp, one_of, relu } from "./layers.js";
import { softmax } from "./mixtures.js";

export const length = (vector) => Math.hypot(...vector);

function squash(vector) {
  const size = length(vector);
  return vector.map((value) => (value * size) / (1 + size * size));
}

// What each primary capsule says that each class capsule is, [n][k][e].
function predictions(primary, { data, shape }) {
  const [, num_classes, depth, width] = shape;
  return primary.map((capsule, n) =>
    Array.from({ length: num_classes }, (_, k) => {
      const output = new Float64Array(width);
      capsule.forEach((value, d) => {
        const from = ((n * num_classes + k) * depth + d) * width;
        for (let e = 0; e < width; e++) output[e] += value * data[from + e];
      });
      return output;
    }),
  );
}

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

// Class capsules [k][e] as sums of predictions, weighted by how much each agrees.
function route_by_agreement(predicted, iterations) {
  const logits = predicted.map((of_capsule) => of_capsule.map(() => 0));
  let parents = [];
  for (let i = 0; i < iterations; i++) {
    const coupling = logits.map(softmax);
    parents = predicted[0].map((first, k) => {
      const sum = new Float64Array(first.length);
      predicted.forEach((of_capsule, n) => {
        of_capsule[k].forEach((value, e) => (sum[e] += coupling[n][k] * value));
      });
      return squash(Array.from(sum));
    });
    if (i === iterations - 1) break; // no coupling follows
    predicted.forEach((of_capsule, n) => {
      of_capsule.forEach((vector, k) => (logits[n][k] += dot(vector, parents[k])));
    });
  }
  return parents;
}

// The vector of every class of an image [canvas, canvas, channels]; its length is its score.
export function encode({ params, options, canvas }, image) {
  const { convolution, primary, class_capsules } = params;
  const first = convolve(image, canvas, convolution.kernel, convolution.bias, 1, relu);
  const [map] = convolve(
    ...first, primary.kernel, primary.bias, options.primary_stride, (x) => x,
  );
  const capsules = in_parts(Array.from(map), map.length / options.primary_features).map(squash);
  const predicted = predictions(capsules, class_capsules.maps);
  return { vectors: route_by_agreement(predicted, options.routing_iterations) };
}

// Example n of arrays [n, ...] that the page carries, in the form that `encode` gives.
export function encoding_of(arrays, n) {
  const { data, shape } = one_of(arrays, n).object_poses;
  return { vectors: in_parts(Array.from(data), shape[0]) };
}

// The image [canvas, canvas, channels] that the capsule of class k draws if it is this vector.
export function draw_vector({ params }, num_classes, vector, k) {
  const masked = new Array(num_classes * vector.length).fill(0);
  vector.forEach((value, i) => (masked[k * vector.length + i] = value));
  return Float32Array.from(mlp(masked, params.decoder), sigmoid);
}
