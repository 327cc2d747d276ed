"""What the project says about itself is true: its links lead somewhere, its versions agree, its claims have tests."""

import hashlib
import re

import pytest

import trimtab

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST_REFERENCE = re.compile(r"(?:\brecipes/\w+/|\b)tests/[\w/.-]+\.py(?:::\w+)*")
CLAIMS_HEADING = "## What is shown, and where"


@pytest.fixture(scope="module")
def texts(project_files):
    return [path for path in project_files if path.suffix == ".md"]


def anchors(text):
    """The anchors that a code host gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_license_is_whole(root):
    # the text that the Apache Software Foundation publishes, from its title to "limitations under the License."
    text = (root / "LICENSE").read_bytes()
    assert len(text.splitlines()) == 201
    assert hashlib.sha256(text).hexdigest() == "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"


def test_the_newest_change_note_is_of_this_version(root):
    newest = re.search(
        r"^## (?:\[)?(\d+\.\d+\.\d+\S*?)(?:\])?(?: .*)?$", (root / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest is not None
    assert newest[1] == trimtab.__version__


def test_links_between_texts_lead_somewhere(texts, root):
    broken = []
    for text in texts:
        for target in LINK.findall(text.read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:", target):
                continue  # another site: no network in tests
            name, _, anchor = target.partition("#")
            page = (text.parent / name).resolve() if name else text
            if not page.exists() or not page.is_relative_to(root):
                broken.append(f"{text}: {target}: no such file")
            elif anchor and page.suffix == ".md" and anchor not in anchors(page.read_text(encoding="utf-8")):
                broken.append(f"{text}: {target}: no such heading")
    assert broken == []


def test_every_test_that_a_text_names_exists(texts, root):
    broken = []
    for text in texts:
        for reference in TEST_REFERENCE.findall(text.read_text(encoding="utf-8")):
            name, *inner = reference.split("::")
            own = text.parent / name  # a recipe has tests of its own
            path = own if own.is_file() else root / name
            if not path.is_file():
                broken.append(f"{text}: {reference}: no such file")
                continue
            code = path.read_text(encoding="utf-8")
            broken += [
                f"{text}: {reference}: no {part} there"
                for part in inner
                if not re.search(rf"^\s*(?:def|class) {part}\b", code, re.MULTILINE)
            ]
    assert broken == []


def test_every_claim_of_the_readme_names_its_test(root):
    # each row of the table under the heading is a claim; a number may point to the benchmark that measured it
    _, _, section = (root / "README.md").read_text(encoding="utf-8").partition(f"{CLAIMS_HEADING}\n")
    section = section.partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    without = [row for row in rows if not re.search(r"\b(?:tests|benchmarks)/[\w/.-]+", row)]
    assert without == []


def test_no_file_knows_the_machine_it_was_written_on(project_files, root):
    # Spelled in pieces, so that this file passes its own test.
    patterns = [
        "/" + "(?:wo" + "rk|ro" + "ot|ho" + "me/[a-z]+)/",
        r"\.\./sha" + "red/",
        "py" + r"pi\.(?:org|io)",
        "python" + "hosted",
        "deb" + r"ian\.(?:org|net)",
        "npm" + "js",
    ]
    found = []
    for path in project_files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a golden log
        found += [f"{path.relative_to(root)}: {match[0]}" for match in re.finditer("|".join(patterns), text)]
    assert found == []
