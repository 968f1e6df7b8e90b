// After the page's own code, in Node: what it finds in images, and draws from what JAX found.
// Reads the path of a JSON file with `page`, what the page carries, and `draw`; writes JSON.

import { readFileSync } from "node:fs";

const given = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const facts = JSON.parse(given.page.facts);
const params = read_params(await inflate(given.page.params), facts.shapes);
const bytes = await inflate(given.page.images);
const { canvas, channels, options } = facts;
const model = { params, options, canvas, channels };
const size = canvas * canvas * channels;
const count = Math.min(given.draw.winner.length, bytes.length / size);

const results = Array.from({ length: count }, (_, n) => {
  const image = Float32Array.from(bytes.subarray(n * size, (n + 1) * size), (byte) => byte / 255);
  const encoded = encode(model, image);
  const of_jax = {
    winner: given.draw.winner[n],
    parts: given.draw.colours[n].map((colour, m) => ({
      colour,
      pose: given.draw.part_poses[n][m].flat(),
      presence: given.draw.part_presence[n][m],
    })),
    objects: given.draw.vote_presence[n].map((vote_presence, k) => ({
      vote_presence,
      object_part: given.draw.object_part[n][k].map((pose) => pose.flat()),
    })),
  };
  const poses = given.draw.object_poses[n].map((pose) => pose.flat());
  return {
    object_poses: encoded.objects.map((object) => object.pose),
    object_presence: encoded.objects.map((object) => object.presence),
    part_poses: encoded.parts.map((part) => part.pose),
    part_presence: encoded.parts.map((part) => part.presence),
    posterior_mass: encoded.mass,
    winner: encoded.winner,
    probe: encoded.probe,
    by_parts: Array.from(draw_from_parts(model, of_jax).picture),
    by_objects: Array.from(draw_from_objects(model, of_jax, poses).picture),
    alone: Array.from(draw_from_objects(model, of_jax, poses, given.draw.alone).picture),
  };
});
console.log(JSON.stringify(results));
