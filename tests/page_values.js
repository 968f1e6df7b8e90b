// After the page's own code, in Node: what it finds in images, and draws from what JAX found.
// Reads the path of a JSON file with `page`, what the page carries; `encodings`, arrays as `encoding_of`
// reads them; `poses` of objects; and the number of an object that is drawn `alone`.

import { readFileSync } from "node:fs";

const given = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const facts = JSON.parse(given.page.facts);
const params = read_params(await inflate(given.page.params), facts.shapes);
const bytes = await inflate(given.page.images);
const { canvas, channels, options } = facts;
const model = { params, options, canvas, channels };
for (const array of Object.values(given.encodings)) array.data = Float32Array.from(array.data);
const size = canvas * canvas * channels;
const count = Math.min(given.poses.length, bytes.length / size);

function of_parts(n, encoded) {
  const encoding = encoding_of(given.encodings, n);
  const poses = given.poses[n].map((pose) => pose.flat());
  return {
    object_poses: encoded.objects.map((object) => object.pose),
    object_presence: encoded.objects.map((object) => object.presence),
    part_poses: encoded.parts.map((part) => part.pose),
    part_presence: encoded.parts.map((part) => part.presence),
    posterior_mass: encoded.mass,
    winner: encoded.parts.map((part) => part.winner),
    by_parts: Array.from(draw_from_parts(model, encoding).picture),
    by_objects: Array.from(draw_from_objects(model, encoding, poses).picture),
    alone: Array.from(draw_from_objects(model, encoding, poses, given.alone).picture),
  };
}

function of_vectors(n, encoded) {
  const { vectors } = encoding_of(given.encodings, n);
  return {
    object_poses: encoded.vectors,
    object_presence: encoded.vectors.map(length),
    alone: Array.from(draw_vector(model, vectors.length, given.poses[n][given.alone], given.alone)),
  };
}

const results = Array.from({ length: count }, (_, n) => {
  const image = Float32Array.from(bytes.subarray(n * size, (n + 1) * size), (byte) => byte / 255);
  const encoded = encode(model, image);
  return encoded.vectors ? of_vectors(n, encoded) : of_parts(n, encoded);
});
console.log(JSON.stringify(results));
