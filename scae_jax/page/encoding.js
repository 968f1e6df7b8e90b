// What is found in an image by models whose objects have parts, and what follows from it.
//
// It is { parts, objects, mass }: each part has a pose, a presence, the number of the object that
// won it (the number of objects where none did), its pose in that object (`inner`), and the presence
// that the object gives it (`vote_presence`); each object a pose and a presence; `mass` is the share
// of all parts that every object explains. `encode` adds what the page shows besides.

import { compose } from "./geometry.js";
import { in_parts, one_of } from "./layers.js";
import { draw, warp_parts } from "./system.js";

// Example n of arrays [n, ...], as write.py names them.
export function encoding_of(arrays, n) {
  const of_each = Object.entries(one_of(arrays, n)).map(([name, { shape, data }]) => {
    const rows = in_parts(Array.from(data), shape[0]);
    return [name, shape.length > 1 ? rows : rows.flat()];
  });
  const of = Object.fromEntries(of_each);
  return {
    parts: of.part_poses.map((pose, m) => ({
      pose,
      presence: of.part_presence[m],
      winner: of.winner[m],
      inner: of.inner[m],
      vote_presence: of.vote_presence[m],
      colour: of.colours?.[m],
    })),
    objects: of.object_poses.map((pose, k) => ({ pose, presence: of.object_presence[k] })),
    mass: of.posterior_mass,
  };
}

// Where parts are if objects have these poses.
//
// Winners, the parts' poses in their objects and the presences of votes stay as they were found.
export function poses_by_objects({ parts }, object_poses) {
  return parts.map(({ pose, winner, inner }) =>
    winner < object_poses.length ? compose(object_poses[winner], inner) : pose,
  );
}

export function draw_from_parts(model, encoding) {
  const warped = warp_parts(model, encoding, encoding.parts.map((part) => part.pose));
  return draw(model, warped, encoding.parts.map((part) => part.presence));
}

// What objects draw; of one object alone where `number` is given.
export function draw_from_objects(model, encoding, object_poses, number = null) {
  const shown = encoding.parts.map(({ winner, vote_presence }) =>
    number === null || winner === number ? vote_presence : 0,
  );
  return draw(model, warp_parts(model, encoding, poses_by_objects(encoding, object_poses)), shown);
}
