"""What the name and the first bytes of a file tell: its format, its packing, and the remedy for a foreign format."""

import bz2
import gzip
import io
import lzma
import posixpath
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import InvalidInput
from common.storage import Place

_OPENERS: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PACKED = frozenset({".csv", ".tsv", ".ndjson", ".jsonl", ".json", ".tfrecord", ".tfrecords"})
_TO_DO: Mapping[str, str] = {
    ".zip": "unpack it first",
    ".zst": "unpack it first, with `zstd -d`",
    ".xlsx": "save the sheet as CSV (UTF-8)",
    ".xls": "save the sheet as CSV (UTF-8)",
    ".ods": "save the sheet as CSV (UTF-8)",
    ".orc": "write it as Parquet: pandas.read_orc(...).to_parquet(...)",
    ".pkl": "write it as Parquet: pandas.read_pickle(...).to_parquet(...)",
    ".avro": "write it as NDJSON, one object a line",
    ".arff": "write it as CSV: the names of the attributes in one line, the rows of @data below",
    ".libsvm": "write it as NDJSON, one object a line, or as Parquet with a column of lists",
    ".svm": "write it as NDJSON, one object a line, or as Parquet with a column of lists",
    ".xml": "write it as CSV or NDJSON",
    ".html": "write it as CSV or NDJSON",
    ".txt": "where it is CSV, name it .csv",
    ".data": "where it is CSV, name it .csv, with a first line of column names",
    ".psv": "where it is CSV, name it .csv",
}
_GZIP, _ZLIB_OR_GZIP = b"\x1f\x8b\x08", 47
_READ_BYTES = 64 * 1024
_BEGINNINGS: Mapping[bytes, str] = {
    b"\x1f\x8b": "is packed by gzip; name it .csv.gz",
    b"BZh": "is packed by bzip2; name it .csv.bz2",
    b"\xfd7zXZ": "is packed by xz; name it .csv.xz",
    b"PK\x03\x04": "is a zip file or a spreadsheet; unpack it, or save the sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "is a spreadsheet; save the sheet as CSV (UTF-8)",
    b"\x28\xb5\x2f\xfd": "is packed by zstd; unpack it first, with `zstd -d`",
    b"PAR1": "is a Parquet file; name it .parquet",
    b"ARROW1": "is an Arrow file; name it .arrow",
    b"%PDF": "is a PDF",
}


def suffix_of(name: str) -> str:
    """In lower case, without what packs it: `.csv` of day.CSV.gz. Parquet files are not packed so."""
    stem, last = posixpath.splitext(name.lower())
    inner = posixpath.splitext(stem)[1]
    return inner if last in _OPENERS and inner in _PACKED else last


def unknown_format(name: str, known: Collection[str]) -> InvalidInput:
    """What is wrong with a file whose name says no format that is read, and what to do."""
    to_do = _TO_DO.get(posixpath.splitext(name.lower())[1])
    reason = f"{name} is not read as it is: {to_do}" if to_do else f"{name} does not say what it is"
    return InvalidInput(f"{reason}; known are {', '.join(known)}")


def opened(path: Path | Place) -> BinaryIO:
    """Open to read, unpacked where the name says that it is packed. What is no such file is an InvalidInput."""
    file: BinaryIO = path.open() if isinstance(path, Place) else path.open("rb")
    opener = _OPENERS.get(posixpath.splitext(path.name.lower())[1])
    if opener is None or suffix_of(path.name) == posixpath.splitext(path.name.lower())[1]:
        return file
    return io.BufferedReader(_Unpacked(opener(file), file, str(path)))


def opened_records(path: Place) -> BinaryIO:
    """A TFRecord file open to read, unpacked where gzip or zlib packed it, as tf.io.TFRecordOptions has it.

    What it is its first bytes say: those of a record that is not packed have a checksum.
    """
    from common.eventlog.tfrecord import HEADER_BYTES, masked_crc32c  # numpy, which the client does without

    file = opened(path)
    beginning = file.read(HEADER_BYTES)
    file.seek(0)
    if masked_crc32c(beginning[:8]) == int.from_bytes(beginning[8:], "little"):
        return file
    is_zlib = beginning[:1] == b"\x78" and not int.from_bytes(beginning[:2]) % 31  # RFC 1950, 2.2
    if not (is_zlib or beginning.startswith(_GZIP)):
        return file
    return io.BufferedReader(_Unpacked(_Inflated(file), file, str(path)))


def foreign(beginning: bytes) -> str:
    """What a file with these first bytes is, which is no text; "" for all others."""
    return next((kind for mark, kind in _BEGINNINGS.items() if beginning.startswith(mark)), "")


class _Inflated:
    """What zlib or gzip packed, also several times one after the other."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._left = packed, b""
        self._unpacker = zlib.decompressobj(_ZLIB_OR_GZIP)

    def readinto(self, buffer: Any) -> int:
        while True:
            packed = self._left or self._packed.read(_READ_BYTES)
            if self._unpacker.eof:
                if not packed:
                    return 0
                self._unpacker = zlib.decompressobj(_ZLIB_OR_GZIP)
            found = self._unpacker.decompress(packed, len(buffer))
            self._left = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if found:
                buffer[: len(found)] = found
                return len(found)
            if not packed:
                raise EOFError("it ends before what is packed does")

    def close(self) -> None:
        """The caller that opened the packed file closes it."""


class _Unpacked(io.RawIOBase):
    def __init__(self, unpacking: Any, packed: BinaryIO, path: str) -> None:
        self._unpacking, self._packed, self._path = unpacking, packed, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._unpacking.readinto(buffer))
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise InvalidInput(f"{self._path} cannot be unpacked: {error}") from error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._unpacking.seek(offset, whence))

    def close(self) -> None:
        self._unpacking.close()
        self._packed.close()
        super().close()
