"""What MkDocs is told beside mkdocs.yml: records, the reference, and links out of docs/.

Pages link to files of the repository by relative paths, so that they can be read without a site.
Here the records in results/ become pages, every package of scae_jax gets a page of the reference,
and links are pointed there. A link to another file of the repository becomes its text.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "scae_jax"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)|!\[([^\]]*)\]\(([^)\s:]+)\)")
CODE = re.compile(r"`([\w.]+)`")


def on_files(files, config):
  """Adds records and pages of the reference."""
  for path in sorted(ROOT.glob("results/**/*")):
    if path.name == "README.md" or path.suffix == ".png":
      uri = path.relative_to(ROOT).as_posix()
      files.append(File.generated(config, uri, abs_src_path=str(path)))
  for name, modules in _rooms().items():
    sections = "".join(f"\n::: {module}\n" for module in modules)
    content = f"# {name.capitalize()}\n{sections}"
    files.append(File.generated(config, f"reference/{name}.md", content=content))
  return files


def on_page_markdown(markdown, page, config, files):
  """Points links that leave docs/ to pages of the site."""
  uri = page.file.src_uri
  folder = posixpath.dirname(uri if uri.startswith("results/") else f"docs/{uri}")

  def pointed(match):
    text, target, anchor, alt, image = match.groups()
    path = posixpath.normpath(posixpath.join(folder, image or target))
    if image is not None:
      return f"![{alt}]({_relative(path, uri)})"
    if path.startswith("scae_jax/") and path.endswith(".py"):
      return f"[{text}][{_identifier(text, path)}]"
    if (ROOT / path / "README.md").is_file():
      path += "/README.md"
    if files.get_file_from_path(path.removeprefix("docs/")) is None:
      return text
    return f"[{text}]({_relative(path, uri)}{anchor or ''})"

  return LINK.sub(pointed, markdown)


def _rooms():
  """Modules of each page of the reference, in alphabetical order."""
  rooms = {"package": sorted(PACKAGE.glob("[a-z]*.py"))}
  for init in sorted(PACKAGE.glob("*/__init__.py")):
    rooms[init.parent.name] = sorted(init.parent.rglob("*.py"))
  rooms["library"] = [PACKAGE / "__init__.py", *rooms["library"]]
  return {name: [_module(path) for path in paths] for name, paths in rooms.items()}


def _module(path):
  return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _identifier(text, path):
  """What of a module a link is to: `Class.method` in its text, or the module."""
  module = _module(ROOT / path)
  code = CODE.fullmatch(text)
  if not code or text.strip("`").endswith(".py"):
    return module
  # `geometry.compose` of geometry.py is `compose`.
  module_name = module.split(".")[-1]
  return f"{module}.{code[1].removeprefix(f'{module_name}.')}"


def _relative(path, uri):
  return posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(uri) or ".")
