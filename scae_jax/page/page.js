// The page: what is chosen, what follows from it, and what shows it.

import { listen_to_pen, mark_test_image, point_of, show_test_images, stroke } from "./choose.js";
import { change_between, change_pose, sigmoid } from "./geometry.js";
import { image_coordinates, make_handles, show_handles, show_marks } from "./handles.js";
import { argmax } from "./mixtures.js";
import { at, css, element, paint, paint_owners, paint_picture } from "./pictures.js";
import {
  alpha, draw_from_parts, encode, mode, parts_of_objects, template, warp_parts,
} from "./scae.js";
import { inflate, read_params } from "./weights.js";

const PRESENT = 0.5; // parts below this have no dot

const facts = JSON.parse(at("facts").textContent);
const { canvas, channels, class_names, colours, labels, options } = facts;
const params = read_params(await inflate(at("params").textContent), facts.shapes);
const model = { params, options, canvas, channels };
const images = split_images(await inflate(at("images").textContent));
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

const state = {
  image: images[0],
  number: 0, // of the test image; null where the image was drawn
  found: null,
  poses: [], // of the objects, as changed by hand
  object: 0,
  part: 0,
  objects_on: new Array(options.num_objects).fill(true),
  parts_on: new Array(options.num_parts).fill(true),
  warped: null, // every part at its present pose
  drawn: null, // from all that is switched on
  times: {},
};

function split_images(bytes) {
  const size = canvas * canvas * channels;
  return Array.from({ length: bytes.length / size }, (_, n) =>
    Float32Array.from(bytes.subarray(n * size, (n + 1) * size), (value) => value / 255),
  );
}

function timed(name, compute) {
  const start = performance.now();
  const result = compute();
  state.times[name] = performance.now() - start;
  return result;
}

const squared_error = (a, b) => a.reduce((sum, value, i) => sum + (value - b[i]) ** 2, 0);

// A new image: everything is found anew.
function look_at(image, number) {
  state.image = image;
  state.number = number;
  state.found = timed("encode", () => encode(model, image));
  state.poses = state.found.objects.map((object) => object.pose);
  state.object = argmax(state.found.mass);
  mark_test_image(number);
  show_found();
  show_drawn();
}

function choose_object(k) {
  state.object = k;
  show_drawn();
}

function change_object(pose) {
  state.poses[state.object] = pose;
  later(show_pose);
}

// Once a frame, however many events there are.
const waiting = new Set();
function later(show) {
  if (waiting.has(show)) return;
  waiting.add(show);
  requestAnimationFrame(() => {
    waiting.delete(show);
    show();
  });
}

// What follows from the image alone.
function show_found() {
  const { found, image, number } = state;
  paint_picture(at("image"), canvas, image, channels);
  const { picture } = draw_from_parts(model, found);
  paint_picture(at("from-parts"), canvas, picture, channels);
  at("parts-error").textContent = squared_error(picture, image).toFixed(1);
  const best = argmax(found.probe);
  const name = number === null ? "" : class_names[labels[number]];
  const where = number === null ? "Your drawing." : `Test image ${number}, label ${name}.`;
  at("answer").textContent = `${where} The linear probe on object presences answers`
    + ` ${class_names[best]} (${(100 * found.probe[best]).toFixed(0)}\u00a0%).`;
}

// What follows from the pose of the chosen object: what changes while it is dragged.
function show_pose() {
  const { found, poses, object, part, objects_on, parts_on } = state;
  const { winner } = found;
  const voted = parts_of_objects(found, poses);
  const presence = voted.presence.map((p, m) => (parts_on[m] && objects_on[winner[m]] ? p : 0));
  state.warped = timed("warp", () => warp_parts(model, found, voted.poses));
  state.drawn = timed("draw", () => mode(model, state.warped, presence));
  paint_picture(at("drawn"), canvas, state.drawn.picture, channels);
  const part_colours = winner.map((k) => colours[k]);
  paint_owners(at("owners"), canvas, state.drawn, channels, part_colours);
  at("objects-error").textContent = squared_error(state.drawn.picture, state.image).toFixed(1);
  const alone = draw_alone(object);
  paint_picture(at("alone"), canvas, alone, channels);
  paint_picture(at("objects").children[object].querySelector("canvas"), canvas, alone, channels);

  const own_poses = voted.poses.filter((_, m) => winner[m] === object && presence[m] > PRESENT);
  const frame = { pose: voted.poses[part], colour: part_colours[part] };
  show_marks(at("marks"), frame, own_poses, colours[object]);
  show_handles(at("handles"), object, poses[object], colours[object]);
  show_sliders();
  const { encode, warp, draw } = state.times;
  at("times").textContent = `The last image took ${encode.toFixed(0)} ms to encode, the last`
    + ` change ${(warp + draw).toFixed(0)} ms to draw.`;
}

// What the parts that an object won draw, at their present poses.
function draw_alone(k) {
  const { winner, objects } = state.found;
  const own = winner.flatMap((of_part, m) => (of_part === k ? [m] : []));
  const presence = own.map((m) => objects[k].vote_presence[m]);
  return mode(model, own.map((m) => state.warped[m]), presence).picture;
}

// All that follows from poses, from what is switched on and from what is chosen.
function show_drawn() {
  show_pose();
  const { found, object, part, objects_on, parts_on } = state;
  for (const [k, row] of [...at("objects").children].entries()) {
    paint_picture(row.querySelector("canvas"), canvas, draw_alone(k), channels);
    show_row(row, found.objects[k].presence, colours[k], objects_on[k], k === object);
  }
  for (const [m, row] of [...at("parts").children].entries()) {
    const colour = colours[found.winner[m]];
    show_row(row, found.parts[m].presence, colour, parts_on[m], m === part);
  }
  show_texts();
}

function show_row(row, presence, colour, is_on, is_chosen) {
  row.classList.toggle("off", !is_on);
  row.querySelector(".bar span").style = `width: ${100 * presence}%; background: ${css(colour)}`;
  row.querySelector("output").textContent = presence.toFixed(2);
  row.querySelector("input[type=radio]").checked = is_chosen;
  row.querySelector("input[type=checkbox]").checked = is_on;
}

function change_so_far() {
  return change_between(state.found.objects[state.object].pose, state.poses[state.object]);
}

function show_sliders() {
  const change = change_so_far();
  for (const [name, { unit, digits, per = 1 }] of Object.entries(SLIDERS)) {
    at(name).value = change[name];
    const shown = (change[name] / per).toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1");
    at(`${name}-value`).textContent = `${shown.replace("-", "−")}${unit}`;
    at(name).setAttribute("aria-valuetext", `${shown}${unit}`);
  }
}

function show_texts() {
  const { found, object, part } = state;
  const presence = found.objects[object].presence.toFixed(2);
  const mass = (100 * found.mass[object]).toFixed(0);
  at("object-number").textContent = object;
  at("alone-text").replaceChildren(
    element("strong", {}, `Object ${object} alone.`),
    ` Presence ${presence}; it explains ${mass}\u00a0% of all parts.`,
  );
  const k = found.winner[part];
  at("part-text").textContent = `Part ${part}: presence ${found.parts[part].presence.toFixed(2)},`
    + ` won by object ${k} with probability ${found.posterior[part][k].toFixed(2)}.`;
  const side = options.part_decoder.template_size;
  paint_picture(at("template"), side, template(model, part), channels);
  const logits = alpha(model, part);
  at("alpha-figure").hidden = !logits;
  if (logits) paint(at("alpha"), side, (i) => sigmoid(logits[i]));
}

// One row for each capsule of a kind: a radio button with a picture, a bar, and a switch.
function make_rows(list, kind, count, choose, switch_on) {
  for (let i = 0; i < count; i++) {
    const radio = element("input", { type: "radio", name: kind, "aria-label": `${kind} ${i}` });
    radio.addEventListener("change", () => choose(i));
    const box = element("input", { type: "checkbox", "aria-label": `show ${kind} ${i}` });
    box.addEventListener("change", () => switch_on(i, box.checked));
    list.append(
      element(
        "li",
        {},
        element("label", {}, radio, element("span", {}, `${i}`), element("canvas")),
        element("span", { class: "bar" }, element("span")),
        element("output"),
        box,
      ),
    );
  }
}

function make_sliders() {
  for (const [name, { label, min, max, step }] of Object.entries(SLIDERS)) {
    const input = element("input", { type: "range", id: name, min, max, step });
    input.addEventListener("input", () => {
      const change = { ...change_so_far(), [name]: Number(input.value) };
      change_object(change_pose(state.found.objects[state.object].pose, change));
    });
    const value = element("output", { id: `${name}-value`, for: name });
    at("slider-rows").append(
      element("div", { class: "slider" }, element("label", { for: name }, label), input, value),
    );
  }
}

// The object that has the largest share of the pixel at a point of the image.
function object_at(x, y) {
  const index = (v) => Math.min(Math.max(Math.round((v + 1) / pixel), 0), canvas - 1);
  const from = (index(y) * canvas + index(x)) * options.num_parts;
  const shares = state.drawn.share.subarray(from, from + options.num_parts);
  return state.found.winner[argmax(shares)];
}

function start() {
  at("summary").textContent = `${options.num_objects} object capsules predict the poses of`
    + ` ${options.num_parts} part capsules, and these draw the image. Trained without labels for`
    + ` ${facts.step.toLocaleString("en")} steps. Choose an image or draw one; then turn an object`
    + " and watch its parts follow.";
  show_test_images(images, facts, (n) => look_at(images[n], n));
  make_sliders();
  make_rows(at("objects"), "object", options.num_objects, choose_object, (k, is_on) => {
    state.objects_on[k] = is_on;
    show_drawn();
  });
  make_rows(at("parts"), "part", options.num_parts, (m) => {
    state.part = m;
    show_drawn();
  }, (m, is_on) => {
    state.parts_on[m] = is_on;
    show_drawn();
  });
  const side = options.part_decoder.template_size;
  at("parts").querySelectorAll("canvas").forEach((picture, m) => {
    paint_picture(picture, side, template(model, m), channels);
  });
  for (const id of ["marks", "handles"]) image_coordinates(at(id), canvas);
  make_handles(at("handles"), canvas, () => state.poses[state.object], change_object);
  at("handles").addEventListener("pointerdown", (event) => {
    const { x, y } = point_of(event, at("handles"));
    choose_object(object_at(x, y));
  });

  const [top, left, bottom, right] = facts.frame;
  at("guide").setAttribute("viewBox", `0 0 ${canvas} ${canvas}`);
  const [width, height] = [right - left, bottom - top];
  at("guide").append(element("rect", { x: left, y: top, width, height }));
  listen_to_pen(at("image"), canvas, (p, q) => {
    state.image = stroke(state.image, canvas, channels, p, q);
    paint_picture(at("image"), canvas, state.image, channels);
    later(look_at_drawing);
  });
  at("clear").addEventListener("click", () => look_at(state.image.map(() => 0), null));
  at("reset").addEventListener("click", () => {
    change_object(state.found.objects[state.object].pose);
  });
  at("reset-all").addEventListener("click", () => {
    state.objects_on.fill(true);
    state.parts_on.fill(true);
    look_at(state.image, state.number);
  });
  look_at(images[0], 0);
}

function look_at_drawing() {
  look_at(state.image, null);
}

start();
