"""Pictures of the page that looks inside a model, taken in Chromium, for README.md and the guide.

  python explore.py --pretrained=digits --output=docs/pages/digits.html
  python docs/pictures.py

docs/pictures/turning.gif has an image chosen and an object turned, scaled and moved by its handles;
light.png, dark.png and phone.png are still. Needs Playwright and one of `BROWSERS`.
"""

import io
import math
import pathlib
import shutil

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = pathlib.Path(__file__).resolve().parent
PAGE = DOCS / "pages" / "digits.html"
FOLDER = DOCS / "pictures"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")

IMAGE = 15  # test image that is chosen in the moving picture
WIDTH, HEIGHT = 920, 700  # of the window, CSS pixels
FRAME_MS = 70
REST_MS = 900
NUM_COLOURS, NUM_GREYS = 48, 64  # of the moving picture
MIN_COLOUR = 40  # of 255: difference of the largest and the smallest channel of what is no grey
# Screenshots have no pointer, so the moving picture brings one.
POINTER = """() => {
  const path = '<path d="M1 1v17l4.5-4 3 6.5 2.6-1.2-3-6.3h6z" fill="#fff" stroke="#000"/>';
  const arrow = document.createElement("div");
  arrow.innerHTML = `<svg width="20" height="24">${path}</svg>`;
  arrow.style = "position: fixed; z-index: 9; pointer-events: none; left: -30px; top: 0";
  document.body.append(arrow);
  window.addEventListener("pointermove", (event) => {
    [arrow.style.left, arrow.style.top] = [`${event.clientX}px`, `${event.clientY}px`];
  }, true);
}"""
NEXT_FRAME = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"


class Recorder:
  """Moves the mouse of a page and keeps what is seen of a part of it, frame by frame."""

  def __init__(self, page, clip):
    self.page, self.clip, self.frames, self.durations = page, clip, [], []
    self.position = (WIDTH / 2, HEIGHT / 2)

  def keep(self, milliseconds=FRAME_MS):
    self.page.evaluate(NEXT_FRAME)
    shot = Image.open(io.BytesIO(self.page.screenshot(clip=self.clip))).convert("RGB")
    self.frames.append(shot)
    self.durations.append(milliseconds)

  def move(self, x, y, count=7):
    """In a straight line that starts and ends slowly."""
    before = self.position
    for i in range(1, count + 1):
      along = (1 - math.cos(math.pi * i / count)) / 2
      self.go(*(a + along * (b - a) for a, b in zip(before, (x, y), strict=True)))

  def go(self, x, y):
    self.page.mouse.move(x, y)
    self.position = (x, y)
    self.keep()

  def click(self):
    self.page.mouse.down()
    self.page.mouse.up()
    self.keep(REST_MS)

  def write(self, path):
    colours = palette_of(self.frames[0], self.frames[-1])
    first, *others = (
      frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in self.frames
    )
    first.save(path, save_all=True, append_images=others, duration=self.durations, loop=0)


def palette_of(*frames):
  """Greys, so that greys stay grey, and the colours of these frames."""
  pixels = np.concatenate([np.asarray(frame).reshape(-1, 3) for frame in frames])
  coloured = pixels[np.ptp(pixels, axis=1) > MIN_COLOUR]
  colours = Image.fromarray(coloured[None]).quantize(NUM_COLOURS).getpalette()
  greys = np.linspace(0, 255, NUM_GREYS).astype(int).repeat(3).tolist()
  palette = Image.new("P", (1, 1))
  palette.putpalette(colours[: 3 * NUM_COLOURS] + greys)
  return palette


def centre(page, selector):
  box = page.locator(selector).bounding_box()
  return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def handle(page, name):
  return centre(page, f"#handles .reach[data-handle={name}]")


def around(origin, radius, angle):
  return origin[0] + radius * math.cos(angle), origin[1] + radius * math.sin(angle)


def record(page, path):
  """An image is chosen; its object is turned there and back, scaled and moved."""
  strip, buttons = (page.locator(name).bounding_box() for name in ("#strip", "#reset"))
  bottom = buttons["y"] + buttons["height"] + 10
  clip = {"x": 16, "y": strip["y"] - 6, "width": WIDTH - 32, "height": bottom - strip["y"]}
  page.evaluate(POINTER)
  recorder = Recorder(page, clip)
  recorder.keep(REST_MS)
  recorder.move(*centre(page, f"#strip label:nth-child({IMAGE + 1})"))
  recorder.click()
  recorder.move(*handle(page, "turn"))
  recorder.keep(REST_MS / 2)
  page.mouse.down()
  origin, (x, y) = handle(page, "move"), handle(page, "turn")
  radius, start = math.dist(origin, (x, y)), math.atan2(y - origin[1], x - origin[0])
  for i in range(1, 31):  # a turn to one side, and to the other
    recorder.go(*around(origin, radius, start + math.radians(60) * math.sin(2 * math.pi * i / 30)))
  for i in range(1, 17):
    recorder.go(*around(origin, radius * (1 - 0.35 * math.sin(2 * math.pi * i / 16)), start))
  page.mouse.up()
  recorder.move(*handle(page, "move"))
  page.mouse.down()
  for dx, dy in ((40, 20), (-30, 0)):
    recorder.move(origin[0] + dx, origin[1] + dy, 9)
  page.mouse.up()
  recorder.keep(REST_MS / 2)
  recorder.move(*centre(page, "#reset"))
  recorder.click()
  recorder.write(path)


def opened(browser, **options):
  page = browser.new_context(**options).new_page()
  page.goto(PAGE.as_uri())
  page.wait_for_function("document.getElementById('times').textContent")
  return page


def main():
  program = next(filter(None, map(shutil.which, BROWSERS)))
  window = {"viewport": {"width": WIDTH, "height": HEIGHT}}
  phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
  FOLDER.mkdir(exist_ok=True)
  with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    record(opened(browser, **window), FOLDER / "turning.gif")
    opened(browser, **window).screenshot(path=FOLDER / "light.png", full_page=True)
    dark = opened(browser, **window, color_scheme="dark")
    end = dark.get_by_role("heading", name="Objects").bounding_box()["y"] - 10
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": end}
    dark.screenshot(path=FOLDER / "dark.png", full_page=True, clip=clip)
    on_phone = opened(browser, **phone)
    on_phone.locator("#drawn").evaluate("one => one.scrollIntoView()")
    on_phone.screenshot(path=FOLDER / "phone.png")
    browser.close()


if __name__ == "__main__":
  main()
