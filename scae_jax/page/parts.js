// The view of a model whose objects have parts: the SCAE and probabilistic capsules.

import { point_of } from "./choose.js";
import { draw_from_parts, encoding_of, poses_by_objects } from "./encoding.js";
import { change_between, change_pose } from "./geometry.js";
import { image_coordinates, make_handles, show_handles, show_marks } from "./handles.js";
import { argmax } from "./mixtures.js";
import {
  add_row, add_sliders, canvas, channels, class_names, facts, later, model, show_row, show_slider,
  show_times, squared_error, start, state, timed,
} from "./page.js";
import { at, element, name_tag, paint, paint_owners, paint_picture } from "./pictures.js";
import { alpha, draw, template, warp_parts } from "./system.js";

const PRESENT = 0.5; // parts below this have no dot

const { colours, num_objects, num_parts } = facts;
const template_side = Math.sqrt(template(model, 0).length / channels);
const pixel = 2 / (canvas - 1); // in coordinates of the image

const IN_PIXELS = { unit: " px", min: -1, max: 1, step: pixel / 4, per: pixel, digits: 1 };
// Sliders: what a change of pose is called, its unit, and the range that one slides over.
const SLIDERS = {
  turn: { label: "Turn", unit: "°", min: -180, max: 180, step: 1, digits: 0 },
  move_x: { label: "Move right", ...IN_PIXELS },
  move_y: { label: "Move down", ...IN_PIXELS },
  scale_x: { label: "Stretch across", unit: " ×", min: 0.1, max: 2.5, step: 0.02, digits: 2 },
  scale_y: { label: "Stretch down", unit: " ×", min: 0.1, max: 2.5, step: 0.02, digits: 2 },
  shear: { label: "Shear", unit: "", min: -1.5, max: 1.5, step: 0.02, digits: 2 },
};

const chosen = {
  poses: [], // of the objects, as changed by hand
  object: 0,
  part: 0,
  objects_on: new Array(num_objects).fill(true),
  parts_on: new Array(num_parts).fill(true),
  warped: null, // every part at its present pose
  drawn: null, // from all that is switched on
};

// A new image: the object that explains the most is chosen, and of its parts the most present one;
// all poses are as found.
function show() {
  const { encoding, image } = state;
  chosen.poses = encoding.objects.map((object) => object.pose);
  chosen.object = argmax(encoding.mass);
  chosen.part = argmax(
    encoding.parts.map(({ winner, presence }) => (winner === chosen.object ? presence : -1)),
  );
  const { picture } = draw_from_parts(model, encoding);
  paint_picture(at("from-parts"), canvas, picture, channels);
  at("parts-error").textContent = squared_error(picture, image);
  show_all();
}

// What follows from the pose of the chosen object: what changes while it is dragged.
function show_pose() {
  const { encoding, image } = state;
  const { poses, object, part, objects_on, parts_on } = chosen;
  const part_poses = poses_by_objects(encoding, poses);
  const presence = encoding.parts.map(({ winner, vote_presence }, m) =>
    parts_on[m] && (winner === num_objects || objects_on[winner]) ? vote_presence : 0,
  );
  timed("draw", () => {
    chosen.warped = warp_parts(model, encoding, part_poses);
    chosen.drawn = draw(model, chosen.warped, presence);
  });
  paint_picture(at("drawn"), canvas, chosen.drawn.picture, channels);
  const part_colours = encoding.parts.map(({ winner }) => colours[winner]);
  paint_owners(at("owners"), canvas, chosen.drawn, channels, part_colours);
  at("objects-error").textContent = squared_error(chosen.drawn.picture, image);
  const alone = draw_alone(object);
  paint_picture(at("alone"), canvas, alone, channels);
  paint_picture(at("objects").children[object].querySelector("canvas"), canvas, alone, channels);

  const own_poses = part_poses.filter(
    (_, m) => encoding.parts[m].winner === object && presence[m] > PRESENT,
  );
  const frame = { pose: part_poses[part], colour: part_colours[part] };
  show_marks(at("marks"), frame, own_poses, colours[object]);
  show_handles(at("handles"), object, poses[object], colours[object]);
  const change = change_so_far();
  for (const [name, { unit, digits, per = 1 }] of Object.entries(SLIDERS)) {
    show_slider(name, change[name], (change[name] / per).toFixed(digits), unit);
  }
  show_times();
}

// What the parts that an object won draw, at their present poses.
function draw_alone(k) {
  const part_numbers = state.encoding.parts.flatMap(({ winner }, m) => (winner === k ? [m] : []));
  const presence = part_numbers.map((m) => state.encoding.parts[m].vote_presence);
  return draw(model, part_numbers.map((m) => chosen.warped[m]), presence).picture;
}

// All that follows from poses, from what is switched on and from what is chosen.
function show_all() {
  show_pose();
  const { encoding } = state;
  const { object, part, objects_on, parts_on } = chosen;
  for (const [k, row] of [...at("objects").children].entries()) {
    paint_picture(row.querySelector("canvas"), canvas, draw_alone(k), channels);
    show_row(row, encoding.objects[k].presence, colours[k], k === object);
    show_switch(row, objects_on[k]);
  }
  for (const [m, row] of [...at("parts").children].entries()) {
    show_row(row, encoding.parts[m].presence, colours[encoding.parts[m].winner], m === part);
    show_switch(row, parts_on[m]);
  }
  show_texts();
}

function show_switch(row, is_on) {
  row.classList.toggle("off", !is_on);
  row.querySelector("input[type=checkbox]").checked = is_on;
}

function change_so_far() {
  return change_between(state.encoding.objects[chosen.object].pose, chosen.poses[chosen.object]);
}

function show_texts() {
  const { encoding } = state;
  const { object, part } = chosen;
  const mass = (100 * encoding.mass[object]).toFixed(0);
  at("object-number").textContent = object;
  at("alone-text").replaceChildren(
    element("strong", {}, `Object ${object} alone.`),
    ` Presence ${encoding.objects[object].presence.toFixed(2)}; it explains ${mass}\u00a0% of all parts.`,
  );
  const { presence, winner, certainty } = encoding.parts[part];
  const by = winner < num_objects ? `won by object ${winner}` : "won by no object";
  const how = certainty === undefined ? "" : ` with probability ${certainty.toFixed(2)}`;
  at("part-text").textContent = `Part ${part}: presence ${presence.toFixed(2)}, ${by}${how}.`;
  paint_picture(at("template"), template_side, template(model, part), channels);
  const cover = alpha(model, part);
  at("alpha-figure").hidden = !cover;
  if (cover) paint(at("alpha"), template_side, (i) => cover[i]);
}

function change_object(pose) {
  chosen.poses[chosen.object] = pose;
  later(show_pose);
}

// The object that has the largest share of the pixel at a point of the image; the chosen one where
// the background has a larger one.
function object_at(x, y) {
  const index = (v) => Math.min(Math.max(Math.round((v + 1) / pixel), 0), canvas - 1);
  const from = (index(y) * canvas + index(x)) * num_parts;
  const shares = chosen.drawn.share.subarray(from, from + num_parts);
  const part = argmax(shares);
  const { winner } = state.encoding.parts[part];
  const is_inked = shares[part] > 1 - shares.reduce((sum, share) => sum + share, 0);
  return is_inked && winner < num_objects ? winner : chosen.object;
}

// Rows that set `chosen[which]` and switch `switches[i]`.
function add_rows(list, which, count, switches) {
  for (let i = 0; i < count; i++) {
    const choose = () => {
      chosen[which] = i;
      show_all();
    };
    add_row(list, which, i, `${i}`, choose, (_, is_on) => {
      switches[i] = is_on;
      show_all();
    });
  }
}

add_sliders(SLIDERS, (name, value) => {
  const change = { ...change_so_far(), [name]: value };
  change_object(change_pose(state.encoding.objects[chosen.object].pose, change));
});
add_rows(at("objects"), "object", num_objects, chosen.objects_on);
add_rows(at("parts"), "part", num_parts, chosen.parts_on);
at("parts").querySelectorAll("canvas").forEach((picture, m) => {
  paint_picture(picture, template_side, template(model, m), channels);
});
for (const id of ["marks", "handles"]) image_coordinates(at(id), canvas);
make_handles(at("handles"), canvas, () => chosen.poses[chosen.object], change_object);
at("handles").addEventListener("click", (event) => {
  const { x, y } = point_of(event, at("handles"));
  chosen.object = object_at(x, y);
  show_all();
});
at("reset").addEventListener("click", () => {
  change_object(state.encoding.objects[chosen.object].pose);
});

start({
  summary: `${num_objects} object capsules predict the poses of ${num_parts} part capsules, and`
    + ` these draw the image. Trained without labels; checkpoint of step ${facts.step.toLocaleString("en")}.`
    + " Choose an image; then turn an object and watch its parts follow.",
  encoding_of,
  answer({ probe }) {
    if (!probe) return [];
    const best = argmax(probe);
    const share = ` (${(100 * probe[best]).toFixed(0)}\u00a0%).`;
    return ["The linear probe on object presences answers ", name_tag(class_names[best]), share];
  },
  show,
  reset() {
    chosen.objects_on.fill(true);
    chosen.parts_on.fill(true);
  },
});
