"""What holds for every file under src, whoever wrote it."""

# A file named here has one subject that does not fit in 400 lines; the reason stands beside it.
LONG_FILES: dict[str, str] = {}
MAX_LINES = 400


def test_source_is_plain_ascii(source_files):
    # ASCII also in what is printed: a terminal over ssh, a log in a cluster, a Windows console
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in source_files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if not line.isascii()
    ]
    assert found == []


def test_a_file_fits_in_a_head(source_files, root):
    lengths = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in source_files}
    too_long = {name: length for name, length in lengths.items() if length > MAX_LINES}
    assert sorted(too_long) == sorted(LONG_FILES), f"over {MAX_LINES} lines: look for a second subject: {too_long}"


def test_no_file_is_a_drawer_for_odds_and_ends(source_files):
    drawers = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [path for path in source_files if path.stem in drawers or path.parent.name in drawers] == []
