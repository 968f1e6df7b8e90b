"""Times the pages that look inside a model, in headless Chromium: one row of a table each.

  python -m benchmarks.page docs/pages/digits.html runs/digits/explore.html

`load`: from opening the file until the first image is shown. `new image`: from choosing one until
everything is shown. `change`: from an event of a slider until what follows is shown, as while an
object is dragged. Medians, ms. Painting by the browser, which follows, is left out.
"""

import pathlib
import shutil
import statistics
import sys

from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
LOADS = 5
READY = "document.getElementById('times').textContent"
# Everything is computed in the handler of the event.
NEW_IMAGES = """() => [...document.querySelectorAll("#strip input")].slice(1, 41).map((input) => {
  const start = performance.now();
  input.click();
  return performance.now() - start;
})"""
# Everything is computed in the next frame, between a callback asked for before and one after.
CHANGES = """async () => {
  const slider = document.querySelector("#sliders input");
  const [low, high] = [Number(slider.min), Number(slider.max)];
  const times = [];
  for (let i = 0; i < 200; i++) {
    await new Promise((done) => {
      let start;
      requestAnimationFrame(() => (start = performance.now()));
      slider.value = low + ((high - low) * ((7 * i) % 200)) / 200;
      slider.dispatchEvent(new Event("input"));
      requestAnimationFrame(() => {
        times.push(performance.now() - start);
        done();
      });
    });
  }
  return times;
}"""


def measure(browser: Browser, path: pathlib.Path) -> str:
  """Opens a page several times and gives its row."""
  loads, page = [], None
  for _ in range(LOADS):
    page = browser.new_page()
    page.goto(path.resolve().as_uri())
    page.wait_for_function(READY)
    loads.append(page.evaluate("performance.now()"))
  assert page is not None
  times = [loads, page.evaluate(NEW_IMAGES), page.evaluate(CHANGES)]
  load, image, change = (statistics.median(samples) for samples in times)
  size = path.stat().st_size / 1e6
  return f"| {page.title()} | {size:.2f} | {load:.0f} | {image:.0f} | {change:.1f} |"


def main(paths: list[str]) -> None:
  """Prints the table."""
  program = next(filter(None, map(shutil.which, BROWSERS)), None)
  with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    print(f"Chromium {browser.version}\n")
    print("| page | MB | load, ms | new image, ms | change, ms |\n|---|---|---|---|---|")
    for path in paths:
      print(measure(browser, pathlib.Path(path)))
    browser.close()


if __name__ == "__main__":
  main(sys.argv[1:])
