"""The page in a browser, headless Chromium: drawn on, an object turned, and compared with JAX."""

import contextlib
import dataclasses
import os
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.data.sources import load_dataset
from scae_jax.page import write
from tests.test_page import digits, first_images, toy_model, turned

__all__ = ["digits"]  # a fixture

pytestmark = pytest.mark.slow

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
ROUNDING = 1.01  # of pixels in [0, 255]: rounded, at most one apart
READ = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [canvas.width, ...data.filter((_, i) => i % 4 == 0)];
}"""


@pytest.fixture(scope="module")
def browser():
  """Skips the test where there is no Chromium or no Playwright, but for continuous integration."""
  program = next(filter(None, map(shutil.which, BROWSERS)), None)
  try:
    from playwright.sync_api import sync_playwright
  except ImportError:
    program = None
  if program is None:
    assert "CI" not in os.environ, f"install playwright and one of {', '.join(BROWSERS)}"
    pytest.skip(f"needs playwright and one of {', '.join(BROWSERS)}")
  with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def path(digits, tmp_path_factory):
  path = tmp_path_factory.mktemp("page") / "explore.html"
  write.write_page(digits, first_images(load_dataset("digits"), 12), path)
  return path


@contextlib.contextmanager
def opened(browser, path, **options):
  """The page, opened from disk; an error or a fetch fails the test."""
  context = browser.new_context(**options)
  page, troubles = context.new_page(), []
  page.on("console", lambda message: message.type != "error" or troubles.append(message.text))
  page.on("pageerror", lambda error: troubles.append(str(error)))
  page.on("request", lambda request: request.url == path.as_uri() or troubles.append(request.url))
  page.goto(path.as_uri())
  page.wait_for_function("document.getElementById('times').textContent")
  yield page
  assert not troubles
  assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
  context.close()


@pytest.fixture(params=["desktop", "phone"])
def page(request, browser, path):
  phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
  with opened(browser, path, **(phone if request.param == "phone" else {})) as page:
    yield page


def pixels(page, name: str) -> np.ndarray:
  """Red of the pixels of a canvas [1, side, side, 1], in [0, 255]."""
  side, *values = page.locator(f"#{name}").evaluate(READ)
  return np.array(values, np.uint8).reshape(1, side, side, 1)


def assert_shows(page, name: str, expected: np.ndarray) -> None:
  canvas = pixels(page, name).astype(np.float32)
  np.testing.assert_allclose(canvas, 255 * expected.clip(0, 1), rtol=0, atol=ROUNDING)


def next_frame(page) -> None:
  """What an event changes is shown a frame later."""
  page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")


def drag(page, points) -> None:
  page.mouse.move(*points[0])
  page.mouse.down()
  for point in points[1:]:
    page.mouse.move(*point, steps=5)
  page.mouse.up()
  next_frame(page)


def test_draw_a_digit_and_turn_an_object(digits, page):
  before = pixels(page, "image")
  # A finger that starts to scroll on the map chooses nothing, a click does.
  page.locator("#map").dispatch_event("pointerdown", {"clientX": 9, "clientY": 9})
  next_frame(page)
  np.testing.assert_array_equal(pixels(page, "image"), before)
  page.locator("#map").click(position={"x": 9, "y": 9})
  next_frame(page)
  assert (pixels(page, "image") != before).any()
  before = pixels(page, "image")
  page.locator("#image").scroll_into_view_if_needed()
  if page.evaluate("navigator.maxTouchPoints"):
    page.locator("#image").tap(position={"x": 9, "y": 9})  # scrolls; draws once there is no image
    next_frame(page)
    np.testing.assert_array_equal(pixels(page, "image"), before)
  page.locator("#clear").click()
  assert not pixels(page, "image").any()
  page.locator("#image").scroll_into_view_if_needed()
  box = page.locator("#image").bounding_box()
  places = ((0.3, 0.2), (0.7, 0.2), (0.45, 0.85))  # a seven
  drag(page, [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places])
  image = pixels(page, "image")
  assert 30 < (image > 127).sum() < 150

  encoding = digits.encode(image)
  object_number = int(page.locator("#object-number").text_content())
  assert object_number == np.argmax(encoding.posterior_mass)
  assert_shows(page, "from-parts", digits.draw(encoding, by="parts"))
  as_found = digits.draw(encoding)
  assert_shows(page, "drawn", as_found)

  # A click on the background, in a corner, leaves the object as it is.
  winners = set(np.asarray(encoding.details["winner"])[0].tolist())
  idle = min(set(range(24)) - winners)
  choose = "one => one.click()"
  radios = page.locator("#objects input[type=radio]")
  radios.nth(idle).evaluate(choose)
  page.locator("#handles").click(position={"x": 3, "y": 3})
  next_frame(page)
  assert page.locator("#object-number").text_content() == str(idle)
  radios.nth(object_number).evaluate(choose)

  page.locator("#turn").fill("40")
  next_frame(page)
  poses = np.array(encoding.object_poses)
  poses[:, object_number] = turned(poses[:, object_number], 40.0)
  as_turned = digits.draw(encoding.replace(object_poses=poses))
  assert np.abs(as_turned - as_found).max() > 0.5
  assert_shows(page, "drawn", as_turned)
  alone = digits.draw(encoding.replace(object_poses=poses), only=object_number)
  assert_shows(page, "alone", alone)

  # Arrow keys on a handle move it by a pixel; the sliders say so.
  handle = page.get_by_role("button", name=f"Move object {object_number}")
  handle.focus()  # an outline would be as wide as the page: its unit is half of the picture
  assert handle.evaluate("one => getComputedStyle(one).outlineStyle") == "none"
  for _ in range(3):
    handle.press("ArrowRight")
    next_frame(page)
  assert page.locator("#move_x-value").text_content() == "3.0 px"
  poses[:, object_number, 0, 2] += 3 * 2 / (image.shape[1] - 1)
  assert_shows(page, "drawn", digits.draw(encoding.replace(object_poses=poses)))

  handle.scroll_into_view_if_needed()
  box = handle.bounding_box()
  x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
  drag(page, [(x, y), (x - 30, y + 10)])
  assert page.locator("#move_x-value").text_content() != "3.0 px"
  assert page.locator("#object-number").text_content() == str(object_number)

  page.get_by_role("button", name="Pose as found").click()
  next_frame(page)
  assert_shows(page, "drawn", as_found)
  # Without the object, only what others won is left.
  page.get_by_label(f"show object {object_number}", exact=True).uncheck()
  winner = np.asarray(encoding.details["winner"])
  share = np.where(winner[:, None] == object_number, 0.0, encoding.details["vote_presence"])
  without = encoding.replace(
    details={**encoding.details, "vote_presence": share.astype(np.float32)}
  )
  presence = jnp.max(jnp.asarray(share), axis=-1)
  assert_shows(page, "drawn", digits.draw(without.replace(object_presence=presence)))


def test_step_through_images_objects_and_parts_by_keyboard(digits, browser, path):
  with opened(browser, path) as page:
    first = page.get_by_role("radio", name="Image 0,")
    first.focus()
    first.press("ArrowRight")
    images = load_dataset("digits").splits["test"].images
    assert "Image 1," in page.locator("#answer").text_content()
    assert_shows(page, "from-parts", digits.draw(digits.encode(images[1:2]), by="parts"))
    page.get_by_role("radio", name="object 5", exact=True).focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#object-number").text_content() == "6"
    page.get_by_role("radio", name="part 15", exact=True).focus()
    page.keyboard.press("ArrowDown")
    assert "Part 0:" in page.locator("#part-text").text_content()


def test_without_an_encoder_the_page_says_why(digits, browser, tmp_path, monkeypatch):
  """And shows what JAX found in the test images, rounded to float16."""
  monkeypatch.setattr(write, "MAX_BYTES", 1_000_000)
  images = first_images(load_dataset("digits"), 4)
  write.write_page(digits, images, tmp_path / "page.html")
  with opened(browser, tmp_path / "page.html") as page:
    assert "encoder" in page.locator("#pen-note").text_content()
    assert page.locator("#clear").is_hidden()
    page.get_by_role("radio", name="Image 1,").check(force=True)
    expected = digits.draw(digits.encode(images.splits["test"].images[1:2]))
    canvas = pixels(page, "drawn").astype(np.float32)
    np.testing.assert_allclose(canvas, 255 * expected.clip(0, 1), rtol=0, atol=4)
    before = pixels(page, "image")
    page.locator("#image").click()
    np.testing.assert_array_equal(pixels(page, "image"), before)


def test_pages_are_timed(browser, path, monkeypatch):
  from benchmarks import page as timing  # needs playwright, as the browser does

  monkeypatch.setattr(timing, "LOADS", 1)
  title, *times = (cell.strip() for cell in timing.measure(browser, path).strip("|").split("|"))
  assert "digits" in title
  assert all(float(time) > 0 for time in times)


def test_objects_of_probabilistic_capsules_are_turned(digits, browser, tmp_path):
  """Some parts belong to none; the page is as before but for the module that computes."""
  model, images = toy_model(digits, "probabilistic")
  write.write_page(model, images, tmp_path / "page.html")
  with opened(browser, tmp_path / "page.html") as page:
    encoding = model.encode(images.splits["test"].images[:1])
    chosen = int(page.locator("#object-number").text_content())
    assert chosen == encoding.posterior_mass.argmax()
    page.locator("#turn").fill("90")
    next_frame(page)
    poses = np.array(encoding.object_poses)
    poses[:, chosen] = turned(poses[:, chosen], 90.0)
    assert_shows(page, "drawn", model.draw(encoding.replace(object_poses=poses))[..., :1])
    assert_shows(page, "from-parts", model.draw(encoding, by="parts")[..., :1])


def test_numbers_of_a_class_capsule(digits, browser, tmp_path):
  model, images = toy_model(digits, "capsnet")
  write.write_page(model, images, tmp_path / "page.html")
  with opened(browser, tmp_path / "page.html") as page:
    encoding = model.encode(images.splits["test"].images[:1])
    best = int(encoding.scores.argmax())
    assert page.locator("#chosen-class").text_content() == model.class_names[best]
    assert_shows(page, "drawn", model.draw(encoding)[..., :1])
    page.locator("#number-3").fill("0.2")
    next_frame(page)
    vectors = np.array(encoding.object_poses)
    vectors[0, best, 3] += 0.2
    changed = model.draw(encoding.replace(object_poses=vectors), only=best)
    assert_shows(page, "drawn", changed[..., :1])
    assert_shows(page, "as-found", model.draw(encoding)[..., :1])
    page.get_by_role("button", name="As found", exact=True).click()
    next_frame(page)
    assert page.locator("#number-3-value").text_content() == "0.00"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["capsnet", "scae"])
@pytest.mark.parametrize("names", [("Ankle boot", 20 * "Llanfairpw"), (12 * "word ", "الحيوانات")])
def test_names_of_classes_are_shown_whole_or_cut_within_the_page(
  digits, browser, tmp_path, name, names, width
):
  model, images = toy_model(digits, name)
  names = tuple(name.strip() for name in names)
  model = dataclasses.replace(model, class_names=names)
  write.write_page(model, images, tmp_path / "page.html")
  # On closing, the page must be no wider than the window.
  with opened(browser, tmp_path / "page.html", viewport={"width": width, "height": 800}) as page:
    labels = page.locator("bdi.name", has_text=re.compile(r"\D\D\D")).evaluate_all(
      """tags => tags.map(tag => {
        const [box, next] = [tag, tag.parentElement.querySelector("canvas")].map(
          one => one && one.getBoundingClientRect());
        return [tag.title, tag.textContent, tag.clientWidth, tag.scrollWidth,
          box.right, next ? next.left : innerWidth];
      })"""
    )
    assert {title for title, *_ in labels} == set(names)
    for title, text, inner, whole, right, limit in labels:
      assert (text, right <= limit) == (title, True)
      assert inner >= min(whole, 100)  # pixels: enough of a long name
