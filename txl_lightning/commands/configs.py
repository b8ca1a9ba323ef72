"""configs: list the included configs, or print one."""

from pathlib import Path

from ..errors import require
from ..files import find_config, find_configs_folder


def configs_command(file: str = "") -> None:
    """List the included configs with published results and parameters, or print one of them.

    --config accepts their names. Configs in hardware/ are added to another one; those in sweeps/
    are for sweep.

    Args:
        file: A name of the list, to print its file; left out, print the list.
    """
    if file:
        path = Path(find_config(file))
        require(path.is_file(), "file", file, "a name that txl-lightning configs lists")
        print(path.read_text(encoding="utf-8"), end="")
        return
    for line in (find_configs_folder() / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            cells = line.replace("`", "").strip("|").split("|")
            name, description, published, parameters = map(str.strip, cells)
            print(f"{name:42}{parameters:>11}  {published:25}{description}".rstrip())
