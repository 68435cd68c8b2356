"""For mkdocs: a link to a file of the repository outside docs/ becomes its path; one to no file is a warning, which
``mkdocs build --strict`` ends with. Links within docs/ are checked by mkdocs itself, with their anchors."""
import logging
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r'\[([^][]+)]\(([^)#:\s]+)(#[^)\s]*)?\)')


def on_page_markdown(markdown: str, page, **_) -> str:
    source = ROOT / 'docs' / page.file.src_uri

    def outside(match: re.Match) -> str:
        path = (source.parent / match[2]).resolve()
        if ROOT / 'docs' in path.parents:
            return match[0]
        if not path.exists() or ROOT not in path.parents:
            logging.getLogger('mkdocs.hooks').warning(f'{source.name}: {match[0]} leads to no file of the repository')
            return match[1]
        shown = f'`{path.relative_to(ROOT)}`'
        return shown if match[1].strip('`') in shown else f'{match[1]} ({shown})'

    return LINK.sub(outside, markdown)
