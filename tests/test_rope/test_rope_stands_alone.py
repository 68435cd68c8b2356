import ast
import sys
from pathlib import Path

import georope.rope

ROOM = Path(georope.rope.__file__).parent


def test_the_method_imports_torch_only():
    for file in ROOM.glob('*.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            else:
                assert not (isinstance(node, ast.ImportFrom) and node.level > 1), f'{file.name} looks outside its room'
            for name in names:
                root = name.split('.')[0]
                assert root == 'torch' or root in sys.stdlib_module_names, f'{file.name} imports {name}'
