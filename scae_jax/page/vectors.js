// The view of a model whose class capsules are vectors: CapsNet.

import { argmax } from "./mixtures.js";
import {
  add_row, add_sliders, canvas, channels, class_names, facts, later, model, show_row, show_slider,
  show_times, squared_error, start, state, timed,
} from "./page.js";
import { at, name_tag, paint_picture } from "./pictures.js";
import { draw_vector, encoding_of, length } from "./system.js";

const REACH = 0.25; // of a slider, to both sides
const num_numbers = model.options.class_features;
const chosen = { k: 0, added: [] }; // `added` has what is added to each capsule, [k][e]

const name_of = (k) => class_names[k];
const vector_of = (k) => state.encoding.vectors[k].map((value, i) => value + chosen.added[k][i]);
const drawn_by = (vector, k) => draw_vector(model, class_names.length, vector, k);

// A new image: the longest capsule is chosen, and nothing is added.
function show() {
  chosen.k = argmax(state.encoding.vectors.map(length));
  chosen.added = state.encoding.vectors.map((vector) => vector.map(() => 0));
  show_all();
}

function show_all() {
  const { k } = chosen;
  show_drawn();
  for (const [i, row] of [...at("classes").children].entries()) {
    paint_picture(row.querySelector("canvas"), canvas, drawn_by(vector_of(i), i), channels);
    const size = length(state.encoding.vectors[i]);
    show_row(row, size, facts.label_colours[i], i === k);
  }
  paint_picture(at("as-found"), canvas, drawn_by(state.encoding.vectors[k], k), channels);
  const size = length(state.encoding.vectors[k]).toFixed(2);
  at("found-text").textContent = `Length ${size}.`;
}

// What changes while a slider is dragged.
function show_drawn() {
  const { k, added } = chosen;
  const vector = vector_of(k);
  const picture = timed("draw", () => drawn_by(vector, k));
  paint_picture(at("drawn"), canvas, picture, channels);
  paint_picture(at("classes").children[k].querySelector("canvas"), canvas, picture, channels);
  for (const id of ["class-name", "chosen-class"]) at(id).replaceChildren(name_tag(name_of(k)));
  at("length").textContent = length(vector).toFixed(2);
  at("error").textContent = squared_error(picture, state.image);
  added[k].forEach((value, i) => show_slider(`number-${i}`, value, value.toFixed(2), ""));
  show_times();
}

const sliders = Array.from({ length: num_numbers }, (_, i) => [
  `number-${i}`, { label: `Number ${i}`, min: -REACH, max: REACH, step: 0.01 },
]);
add_sliders(Object.fromEntries(sliders), (name, value) => {
  chosen.added[chosen.k][Number(name.split("-")[1])] = value;
  later(show_drawn);
});
at("classes").classList.toggle("named", class_names.some((name) => name.length > 3));
class_names.forEach((name, k) => {
  add_row(at("classes"), "class", k, name, () => {
    chosen.k = k;
    show_all();
  });
});
at("reset").addEventListener("click", () => {
  chosen.added[chosen.k].fill(0);
  later(show_drawn);
});
start({
  summary: `${class_names.length} class capsules of ${num_numbers} numbers each: the length of a`
    + " capsule is the score of its class, and a decoder draws the image from one capsule. Trained"
    + ` with labels; step ${facts.step.toLocaleString("en")} of its last run. Choose an image; then change the`
    + " numbers of a capsule and watch what it draws.",
  encoding_of,
  answer({ vectors }) {
    const best = argmax(vectors.map(length));
    const size = length(vectors[best]).toFixed(2);
    return ["The longest capsule is that of ", name_tag(name_of(best)), ` (${size}).`];
  },
  show,
});
