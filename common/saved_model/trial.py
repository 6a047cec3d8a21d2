"""`python -m common.saved_model.trial BYTES`: exits with 0 when a process with this much memory can read
standard input as a saved_model.pb."""

import resource
import sys

from google.protobuf.message import DecodeError

from protos.saved_model_pb2 import SavedModel

if __name__ == "__main__":
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        SavedModel.FromString(sys.stdin.buffer.read())
    except (DecodeError, MemoryError):
        sys.exit(1)
