// What every page has: the image that is looked at, where it comes from, and rows of capsules.
//
// "./system.js" stands for the model's own: scae.js, probabilistic.js or capsnet.js. A view, parts.js
// or vectors.js, shows what is found in the image.

import { listen_to_pen, mark_test_image, show_test_images, stroke } from "./choose.js";
import { at, css, element, name_tag, paint_picture, set } from "./pictures.js";
import { encode } from "./system.js";
import { inflate, read_params } from "./weights.js";

export const facts = JSON.parse(at("facts").textContent);
export const canvas = facts.canvas;
export const channels = facts.channels;
export const class_names = facts.class_names;
export const model = {
  params: read_params(await inflate(at("params").textContent), facts.shapes),
  options: facts.options,
  canvas,
  channels,
};
const carried = read_params(await inflate(at("encodings").textContent), facts.encoding_shapes);
const images = split_images(await inflate(at("images").textContent));

// `number` is that of the held-out image, null where the image was drawn.
export const state = { image: images[0], number: 0, encoding: null, times: {} };

function split_images(bytes) {
  const size = canvas * canvas * channels;
  return Array.from({ length: bytes.length / size }, (_, n) =>
    Float32Array.from(bytes.subarray(n * size, (n + 1) * size), (value) => value / 255),
  );
}

export function timed(name, compute) {
  const start = performance.now();
  const result = compute();
  state.times[name] = performance.now() - start;
  return result;
}

export function show_times() {
  const { encode, draw } = state.times;
  const encoded = facts.left_out ? "" : `The last image took ${encode.toFixed(0)} ms to encode. `;
  at("times").textContent = `${encoded}The last change took ${draw.toFixed(0)} ms to draw.`;
}

export const squared_error = (a, b) =>
  a.reduce((sum, value, i) => sum + (value - b[i]) ** 2, 0).toFixed(1);

// Once a frame, however many events there are.
const waiting = new Set();
export function later(show) {
  if (waiting.has(show)) return;
  waiting.add(show);
  requestAnimationFrame(() => {
    waiting.delete(show);
    show();
  });
}

function show_image(answer) {
  const { image, number } = state;
  paint_picture(at("image"), canvas, image, channels);
  set(at("guide"), { visibility: number === null ? "visible" : "hidden" });
  const of_test = () => [`Image ${number}, label `, name_tag(class_names[facts.labels[number]]), ". "];
  at("answer").replaceChildren(...(number === null ? ["Your drawing. "] : of_test()), ...answer);
}

// A row of a list for one capsule: a radio button with a picture, a bar, and, if it can be taken out
// of the picture, a switch.
export function add_row(list, kind, i, name, choose, switch_on = null) {
  const radio = element("input", { type: "radio", name: kind, "aria-label": `${kind} ${name}` });
  radio.addEventListener("change", () => choose(i));
  const row = element(
    "li",
    {},
    element("label", {}, radio, name_tag(name), element("canvas")),
    element("span", { class: "bar" }, element("span")),
    element("output"),
  );
  list.append(row);
  if (!switch_on) return;
  const box = element("input", { type: "checkbox", "aria-label": `show ${kind} ${name}` });
  box.addEventListener("change", () => switch_on(i, box.checked));
  row.append(box);
}

// A number in [0, 1] as the bar of a row.
export function show_row(row, share, colour, is_chosen) {
  row.querySelector(".bar span").style = `width: ${100 * share}%; background: ${css(colour)}`;
  row.querySelector("output").textContent = share.toFixed(2);
  row.querySelector("input[type=radio]").checked = is_chosen;
}

// One slider for each entry of `sliders`: { name: { label, min, max, step } }.
export function add_sliders(sliders, change) {
  for (const [name, { label, min, max, step }] of Object.entries(sliders)) {
    const input = element("input", { type: "range", id: name, min, max, step });
    input.addEventListener("input", () => change(name, Number(input.value)));
    const value = element("output", { id: `${name}-value`, for: name });
    at("slider-rows").append(
      element("div", { class: "slider" }, element("label", { for: name }, label), input, value),
    );
  }
}

export function show_slider(name, value, shown, unit) {
  at(name).value = value;
  const text = shown.replace(/^-(0(\.0*)?)$/, "$1");
  at(`${name}-value`).textContent = `${text.replace("-", "−")}${unit}`;
  at(name).setAttribute("aria-valuetext", `${text}${unit}`);
}

// Shows the first image. A view has `summary`, a text; `encoding_of(arrays, n)`, what the page carries
// where it has no encoder; `answer(encoding)`, the parts of a sentence; and `show()`, called for every new image.
export function start(view) {
  function look_at(image, number) {
    const find = () => (facts.left_out ? view.encoding_of(carried, number) : encode(model, image));
    Object.assign(state, { image, number, encoding: timed("encode", find) });
    at("image").classList.toggle("drawing", number === null);
    mark_test_image(number);
    show_image(view.answer(state.encoding));
    view.show();
  }

  at("summary").textContent = view.summary;
  show_test_images(images, facts, (n) => look_at(images[n], n));
  at("reset-all").addEventListener("click", () => {
    view.reset?.();
    look_at(state.image, state.number);
  });
  if (facts.left_out) {
    at("pen-note").textContent = `It cannot be drawn on: ${facts.left_out}.`;
    at("clear").hidden = true;
    at("image").style = "cursor: default";
  } else {
    const [top, left, bottom, right] = facts.frame;
    at("guide").setAttribute("viewBox", `0 0 ${canvas} ${canvas}`);
    const [width, height] = [right - left, bottom - top];
    at("guide").append(element("rect", { x: left, y: top, width, height }));
    const look_at_drawing = () => look_at(state.image, null);
    listen_to_pen(at("image"), canvas, (p, q) => {
      state.image = stroke(state.image, canvas, channels, p, q);
      paint_picture(at("image"), canvas, state.image, channels);
      later(look_at_drawing);
    }, () => state.number === null);
    at("clear").addEventListener("click", () => look_at(state.image.map(() => 0), null));
  }
  look_at(images[0], 0);
}
