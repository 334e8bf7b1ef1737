"""defer.py: when a package is imported, and what it is kept from importing meanwhile."""

import subprocess
import sys

# A package that would import another one where it is installed, as Keras does with matplotlib.
HEAVY = """
try:
    import drawing
except ImportError:
    drawing = None
value = 7
"""
PROGRAM = """
import sys
from async_dqn.base.defer import defer
defer("heavy", without=["drawing", "no_such_package"])
import heavy
assert "drawing" not in sys.modules
if "first" in sys.argv:
    import drawing
assert heavy.value == 7
import drawing
assert drawing.value == 5 and "no_such_package" not in sys.modules
import importlib.util
assert importlib.util.find_spec("drawing") is not None and importlib.util.find_spec("no_such_package") is None
print(heavy.drawing is not None)
"""


def run(folder, *arguments):
    (folder / "heavy.py").write_text(HEAVY)
    (folder / "drawing.py").write_text("value = 5")
    path = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", path + PROGRAM, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_package_is_kept_from_another_one_and_nobody_else_is(tmp_path):
    assert run(tmp_path) == "False"


def test_one_that_is_not_installed_is_missed_where_it_is_first_used():
    program = """
from async_dqn.base.defer import defer
defer("no_such_package")
import no_such_package as it
try:
    it.value
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "No module named 'no_such_package'\n", done.stderr


def test_what_is_imported_already_is_hidden_from_nobody(tmp_path):
    assert run(tmp_path, "first") == "True"
