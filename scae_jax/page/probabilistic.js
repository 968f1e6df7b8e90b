// Probabilistic capsules of two layers, one image at a time, as in scae_jax/models/probabilistic, and
// in routing/selection.py and compositing.py of scae_jax/math. `model` is
// { params, options, canvas, channels }; options are the config's model section.

import { IDENTITY, affine_matrix, compose, sigmoid } from "./geometry.js";
import {
  attention_pooling, capsule_mlp, convnet, elu, in_parts, set_transformer,
} from "./layers.js";
import {
  argmax, logsumexp, normal_log_prob, posterior_mass, softmax, softplus, to_unit_range,
  warp_template,
} from "./mixtures.js";

const POSE_SIZE = 6;

const log_sigmoid = (x) => -softplus(-x);
const logaddexp = (a, b) => logsumexp([a, b]);

// Of every part of an image [canvas, canvas, channels]: pose, and logit of its presence.
function part_inference(image, { params, options, canvas }) {
  const { strides, min_part_scale } = options.part_inference;
  const weights = params.part_inference;
  const map = convnet(image, canvas, weights.convnet, strides, elu);
  return attention_pooling(map, options.capsules[0], weights.pooling).map(([logit, ...raw]) => ({
    logit, pose: affine_matrix(raw, min_part_scale),
  }));
}

// Of every object, from parts with relaxed presences: pose, and logit of its presence.
function object_inference(parts, { params, options }) {
  const weights = params.object_inference_0;
  const presence = parts.map((part) => sigmoid(part.relaxed));
  const rows = parts.map(({ pose }, m) => [
    ...pose, presence[m], ...parts.map((_, other) => (other === m ? 1 : 0)),
  ]);
  const settings = { ...options.object_inference, mask: "log_presence", norm_epsilon: 1e-6 };
  const x = set_transformer(rows, presence, weights.set_transformer, settings);
  return capsule_mlp(x, weights.heads).map(([logit, ...offset]) => ({
    logit, pose: IDENTITY.map((value, i) => value + offset[i]),
  }));
}

// What objects say of parts: as `Relations` of selection.py, each [k][m].
function relations({ params, options }) {
  const { max_affinity, min_scale, shared_scales } = options.generative;
  const weights = params.generative;
  const [num_parts, num_objects] = options.capsules;
  const start = -Math.log(max_affinity - 1);
  const limited = (raw) => Math.log(max_affinity) + log_sigmoid(raw + start);
  const by_part = (numbers) => in_parts(numbers, num_parts);
  const inner = in_parts(Array.from(weights.offset_1.data), num_objects).map((of_object) =>
    by_part(of_object).map((offset) => offset.map((value, i) => IDENTITY[i] + value)),
  );
  const scales = in_parts(
    Array.from(weights.scale_1.data, (raw) => min_scale + softplus(raw)), shared_scales ? 1 : num_objects,
  ).map(by_part);
  const affinity = Array.from(weights.affinity_1.data, max_affinity ? limited : (raw) => raw);
  return {
    affinity: in_parts(affinity, num_objects),
    presence: in_parts(Array.from(weights.presence_1.data), num_objects + 1), // the dummy is last
    inner,
    scales: inner.map((_, k) => scales[shared_scales ? 0 : k]),
  };
}

const pose_log_prob = (pose, mean, scale) =>
  pose.reduce((sum, x, i) => sum + normal_log_prob(x, mean[i], scale[i]), 0);

// log density of a relaxed Bernoulli variable, by the logit of its value.
function relaxed_log_prob(value, logit, temperature) {
  const z = (value - logit / temperature) * temperature;
  return Math.log(temperature) + log_sigmoid(z) + log_sigmoid(-z);
}

// Probability that each object, or the dummy, which is last, has part m, [k + 1].
function select(part, m, objects, { affinity, presence, inner, scales }, { generative, off_poses }) {
  const { broad_scale, dummy_affinity, min_scale, temperature } = generative;
  const choice = objects.map((object, k) => log_sigmoid(object.relaxed) + affinity[k][m]);
  const [all_broad, all_sharp] = [broad_scale, min_scale].map((x) => new Array(POSE_SIZE).fill(x));
  const broad = pose_log_prob(part.pose, IDENTITY, all_broad);
  const if_off =
    off_poses === "summed_out" ? pose_log_prob(part.pose, part.pose, all_sharp) : broad;
  const if_on = objects.map(({ pose }, k) =>
    pose_log_prob(part.pose, compose(pose, inner[k][m]), scales[k][m]),
  );
  const joint = [...choice, Math.log(dummy_affinity)].map((log_choice, k) =>
    log_choice
    + relaxed_log_prob(part.relaxed, presence[k][m], temperature)
    + logaddexp(
      log_sigmoid(part.relaxed) + (k < objects.length ? if_on[k] : broad),
      log_sigmoid(-part.relaxed) + if_off,
    ),
  );
  return softmax(joint);
}

// Parts and objects of an image, in the form of encoding.js.
export function encode(model, image) {
  const { temperature, upper_temperature } = model.options.generative;
  const parts = part_inference(image, model);
  for (const part of parts) part.relaxed = part.logit / temperature;
  const objects = object_inference(parts, model);
  for (const object of objects) object.relaxed = object.logit / (upper_temperature ?? temperature);
  for (const capsule of [...parts, ...objects]) capsule.presence = sigmoid(capsule.logit);
  const related = relations(model);
  const posterior = parts.map((part, m) => select(part, m, objects, related, model.options));
  for (const [m, part] of parts.entries()) {
    const winner = argmax(posterior[m]);
    Object.assign(part, { winner, certainty: posterior[m][winner], inner: related.inner[winner]?.[m] });
    part.vote_presence = winner < objects.length ? part.presence : 0;
  }
  const on = posterior.map((of_part, m) => of_part.map((p) => p * sigmoid(parts[m].relaxed)));
  return { parts, objects, mass: posterior_mass(on) };
}

// Template of part m in [0, 1], [side, side, channels].
export function template({ params, options }, m) {
  const { data, shape } = params.generative.templates;
  const size = data.length / shape[0];
  const raw = data.subarray(m * size, (m + 1) * size);
  return raw.map((x) => to_unit_range(x, options.generative.nonlinearity));
}

// How much part m covers, in [0, 1], [side, side].
export function alpha({ params }, m) {
  const { data, shape } = params.generative.alphas;
  const size = data.length / shape[0];
  return data.subarray(m * size, (m + 1) * size).map(sigmoid);
}

// Parts at some poses, ready for `draw`: colours times alphas and, as the last channel, alphas.
export function warp_parts(model, encoding, poses) {
  const { options, canvas, channels } = model;
  return poses.map((pose, m) => {
    const [means, cover] = [template(model, m), alpha(model, m)];
    const bank = Float32Array.from({ length: means.length + cover.length }, (_, i) => {
      const [cell, c] = [Math.floor(i / (channels + 1)), i % (channels + 1)];
      return cover[cell] * (c < channels ? means[cell * channels + c] : 1);
    });
    return warp_template(bank, options.generative.template_size, channels + 1, pose, canvas);
  });
}

// The image that warped parts paint over one another, on black, and whose each pixel is.
//
// `share` [canvas, canvas, m] has each part's alpha, as far as it shows through those above.
export function draw({ options, canvas, channels }, warped, presence) {
  const { temperature } = options.generative;
  const relaxed = presence.map((p) => sigmoid(Math.log(p / (1 - p)) / temperature));
  const width = channels + 1;
  const picture = new Float32Array(canvas * canvas * channels);
  const share = new Float32Array(canvas * canvas * warped.length);
  for (let i = 0; i < canvas * canvas; i++) {
    let through = 1;
    for (let m = warped.length - 1; m >= 0; m--) {
      const visible = through * relaxed[m];
      for (let c = 0; c < channels; c++) {
        picture[i * channels + c] += visible * warped[m][i * width + c];
      }
      share[i * warped.length + m] = visible * warped[m][i * width + channels];
      through *= 1 - relaxed[m] * warped[m][i * width + channels];
    }
  }
  return { picture, share };
}
