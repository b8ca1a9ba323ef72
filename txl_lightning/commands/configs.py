"""configs: list the given configs, or print one."""

from pathlib import Path

from ..errors import require
from ..files import configs_folder, find_config


def configs_command(file: str) -> None:
    """List the given configs with what was published and their parameters, or print one of them.

    A name is enough for --config; hardware/ has second configs, and sweeps/ is for sweep.

    Args:
        file: A name in the list, whose file is printed; left out, the list.
    """
    if file:
        path = Path(find_config(file))
        require(path.is_file(), "file", file, "a name that txl-lightning configs lists")
        print(path.read_text(encoding="utf-8"), end="")
        return
    for line in (configs_folder() / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            cells = line.replace("`", "").strip("|").split("|")
            name, about, published, parameters = map(str.strip, cells)
            print(f"{name:42}{parameters:>11}  {published:25}{about}".rstrip())
