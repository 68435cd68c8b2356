"""Links of all pages lead to files and headings; the errors of docs/troubleshooting.md are those of the code."""
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob('*.md'), *(page for folder in ('configs', 'docs', 'examples', 'projects', 'tests')
                               for page in (ROOT / folder).rglob('*.md') if '.mim' not in page.parts)]
LINK = re.compile(r'\[[^][]+]\(([^)\s]+)\)')
HEADING = re.compile(r'^#+ (.*)$', re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of the headings."""
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in HEADING.findall(page.read_text())}


def test_links_lead_somewhere():
    lost, count = [], 0
    for page in PAGES:
        for link in LINK.findall(page.read_text()):
            path, _, anchor = link.partition('#')
            if '://' in link:
                continue
            count += 1
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or ROOT not in target.parents or (anchor and anchor not in anchors(target)):
                lost.append(f'{page.relative_to(ROOT)}: {link}')
    assert not lost and count > 40


def texts() -> list[str]:
    """All strings of package and tools, with a blank for each value that is put in."""
    found = []
    for path in (*(ROOT / 'projects').rglob('*.py'), *(ROOT / 'tools').glob('*.py')):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            found.append(''.join(x.value if isinstance(x, ast.Constant) and isinstance(x.value, str) else ' '
                                 for x in parts))
    return found


def test_the_errors_of_the_page_are_those_of_the_code():
    headings = HEADING.findall((ROOT / 'docs/troubleshooting.md').read_text())
    messages = [title.strip('`') for title in headings if title.startswith('`')]
    assert len(messages) == 10
    said = texts()
    for message in messages:
        pattern = re.compile('.*'.join(re.escape(part.strip()) for part in message.split('...')), re.DOTALL)
        assert any(map(pattern.search, said)), message
