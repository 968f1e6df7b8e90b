"""Whether routing depends on the image: which parts are on, and which object wins them.

A model may reconstruct well, and its poses may classify well, while every part is on in every image
and always belongs to the same object.
"""

from typing import Any

import numpy as np

from scae_jax.typing import Float, Int, typed

ON = 0.5  # a capsule with a presence above it is on
# The image switches a capsule that is on in more than this share of examples, and off in more than
# this share.
SOMETIMES = 0.05


@typed
def measure_routing(
  part_presence: Float[np.ndarray, "b m"],
  part_winner: Int[np.ndarray, "b m"],
  object_presence: Float[np.ndarray, "b k"],
  object_poses: Float[np.ndarray, "b k 2 3"],
) -> dict[str, Any]:
  """Measures which capsules are on, and which object wins each part, over examples.

  `part_winner` is the object that won each part, k or more for none.

  Returns:
    `parts` and `objects`: a dict for each capsule. All have `on`, the share of examples in which
    it is on. Objects have `presence` and `presence_deviation`, mean and standard deviation;
    `pose_deviation`, the root mean square one of the pose's entries; and `wins`, the mean number of
    parts that are on and that it wins. Parts have `commonest`, the most frequent winner where the
    part is on, None for no object; and `others`, the share of those examples with another winner.

    `switched`: the number of parts and objects that are on in some examples and off in others.
    `routed`: the number of parts that are on in more than `SOMETIMES` of the examples, and have
    another winner than their commonest in more than `SOMETIMES` of those.
  """
  num_objects = object_presence.shape[1]
  is_on = part_presence > ON
  parts = []
  for on, winner in zip(is_on.T, part_winner.T, strict=True):
    counts = np.bincount(np.minimum(winner[on], num_objects), minlength=num_objects + 1)
    most = int(np.argmax(counts))
    is_ever_on = bool(on.any())
    parts.append(
      {
        "on": float(on.mean()),
        "commonest": most if is_ever_on and most < num_objects else None,
        "others": float(1 - counts[most] / counts.sum()) if is_ever_on else None,
      }
    )
  objects = [
    {
      "on": float(np.mean(object_presence[:, k] > ON)),
      "presence": float(object_presence[:, k].mean()),
      "presence_deviation": float(object_presence[:, k].std()),
      "pose_deviation": float(np.sqrt(object_poses[:, k].var(axis=0).mean())),
      "wins": float(np.mean(np.sum(is_on & (part_winner == k), axis=1))),
    }
    for k in range(num_objects)
  ]
  return {
    "parts": parts,
    "objects": objects,
    "switched": {
      kind: sum(SOMETIMES < capsule["on"] < 1 - SOMETIMES for capsule in capsules)
      for kind, capsules in (("parts", parts), ("objects", objects))
    },
    "routed": sum(part["on"] > SOMETIMES and part["others"] > SOMETIMES for part in parts),
  }
