"""Arrays of any name in one .npz of this machine's own: numpy.savez takes no array that is called `file`."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Strings are object arrays of bytes, which travel pickled: only between processes of ours."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=True)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What write_arrays wrote; {} where there is no file."""
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=True) as file:
        return {name: file[name] for name in file.files}
