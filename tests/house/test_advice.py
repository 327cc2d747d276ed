"""Nothing that Trimtab says advises what hides a fault: a larger clip, a loss term taken away, multipliers stacked."""

import ast
import re

import pytest

ADVICE = re.compile(
    r"\b(larger|bigger|looser|higher|raise|raising|increase|increasing|loosen|loosening|widen)( the| your| a)? "
    r"(gradient )?(clip|`?max_grad_norm)"
    r"|\b(delete|deleting|drop|dropping|remove|removing|leave out|switch off|disable)( the| a| its| your)? "
    r"(router z|z.?loss|load.balanc\w+ (loss|term)|loss term|aux\w*( loss| term)|xpop|lbl)"
    r"|\b(stack|stacking|chain|chaining|multiply together)( the| several| more)? (multipliers|factors|weights)",
    re.IGNORECASE,
)
"""What no text may tell a reader to do."""

A_REFUSAL = re.compile(r"\b(never|nobody|no|not|nor|neither|none|without|instead of|rather than)\b", re.IGNORECASE)
"""What turns it into the opposite, in the same sentence."""

NEVER = re.compile(r"^## Never\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
"""A section of what not to do."""

SENTENCE = re.compile(r"(?<=[.:;])\s+|\n\s*\n|\n(?=[|*#-])")


def advice_in(text):
    """The sentences of a text that advise it."""
    if not ADVICE.search(" ".join(text.split())):
        return []
    sentences = (" ".join(sentence.split()) for sentence in SENTENCE.split(NEVER.sub("", text)))
    return [sentence for sentence in sentences if ADVICE.search(sentence) and not A_REFUSAL.search(sentence)]


def strings_of(source):
    """The texts of a module that may hold any: those it says, with holes where figures go, and its docstrings."""
    if not ADVICE.search(" ".join(re.sub(r'"\s*\n\s*f?"', "", source).split())):
        return
    parts_of_others = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts_of_others.update(map(id, node.values))
            yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts_of_others:
            yield node.value


@pytest.mark.parametrize(
    "text",
    [
        "gradients are clipped in every step: try a larger clip",
        "raise max_grad_norm to 5",
        "the loss is not what was stated; remove the z-loss",
        "dropping the load balancing loss helps; stack several multipliers",
    ],
)
def test_such_advice_is_known_where_it_stands(text):
    assert advice_in(text)


@pytest.mark.parametrize(
    "text",
    ["never raise the clip", "neither a larger clip nor dropping the z-loss helps", "## Never\n\n* raise the clip;\n"],
)
def test_and_what_warns_of_it_is_none(text):
    assert advice_in(text) == []


def test_a_text_of_a_module_is_found_over_its_lines():
    source = 'def advise(norm):\n    return (\n        f"norm {norm}: try a "\n        "larger clip"\n    )\n'
    assert [advice_in(text) for text in strings_of(source)] == [["try a larger clip"]]


def test_no_text_of_the_library_advises_it(root):
    found = {}
    for path in sorted((root / "src" / "trimtab").rglob("*.py")):
        advised = [one for text in strings_of(path.read_text(encoding="utf-8")) for one in advice_in(text)]
        found |= {str(path.relative_to(root)): advised} if advised else {}
    assert found == {}


def test_no_page_advises_it(root, project_files):
    pages = [path for path in project_files if path.suffix == ".md"]
    assert len(pages) > 20
    found = {str(path.relative_to(root)): advice_in(path.read_text(encoding="utf-8")) for path in pages}
    assert {name: advised for name, advised in found.items() if advised} == {}
