"""What a process leaves on the disk if it is killed at any line of some modules."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def copy_at_every_line(act: Callable[[Path], object], place: Path, *modules: ModuleType) -> None:
    """Call a function with a folder like `place`; write numbered copies of it, one at the end.

    A kill leaves what is on the disk at this line, without what Python has not written yet. So a
    copy of the folder at each line, where it has changed, stands for a process killed there. Run
    this in a process of its own: what it leaves is that of a process that has ended.
    """
    files = {module.__file__ for module in modules}
    number = 0
    before = None
    folder = place.with_name(f"{place.name}.act")
    shutil.copytree(place, folder)

    def copy_changed() -> None:
        nonlocal number, before
        content = read_tree(folder)
        if content != before:
            shutil.copytree(folder, place.with_name(f"{place.name}-{number:04}"))
            number += 1
            before = content

    def trace(frame, event, _):
        if frame.f_code.co_filename in files:
            if event == "line":
                copy_changed()
            return trace

    sys.settrace(trace)
    try:
        act(folder)
    finally:
        sys.settrace(None)
    copy_changed()
    shutil.rmtree(folder)


def read_tree(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
