"""docs/reference/grpc.md: services, methods and messages, from the comments in protos/*.proto."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2

from docs.generate.markdown import bullet, page, paragraph

_ROOT = Path(__file__).parents[2]
_FILES = ("ingest", "registry", "queue", "prediction_log")
_INTRODUCTION = """\
Ports: ingest 8600, registry 8700, serving 8500. Health and reflection are on every port, so that tools such as grpcurl
find the rest. Errors: [Errors](errors.md). Serving speaks TensorFlow Serving's PredictionService and ModelService
(`protos/tfserving.proto`), with the messages of that project; what differs is in
[Differences from TensorFlow Serving](tensorflow-serving.md). The messages of the queue travel through Redis:
[The queue](queue.md)."""
_SERVICE, _MESSAGE, _METHOD, _FIELD, _NESTED = 6, 4, 2, 2, 3
"""Field numbers of descriptor.proto, which the paths of comments consist of."""
Comments = Mapping[tuple[int, ...], str]


def document() -> str:
    return page("gRPC", __name__, paragraph(_INTRODUCTION), *(part for file in _read() for part in _file(file)))


def _read() -> list[descriptor_pb2.FileDescriptorProto]:
    """The files with their comments, which the generated modules leave out."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "protos"
        names = [f"protos/{name}.proto" for name in _FILES]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_source_info", f"-o{out}", *names]
        subprocess.run(command, cwd=_ROOT, check=True)
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def _file(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    comments = {
        tuple(place.path): " ".join((place.leading_comments or place.trailing_comments).split())
        for place in file.source_code_info.location
    }
    yield f"## {file.name}"
    syntax = next((place for place in file.source_code_info.location if list(place.path) == [12]), None)
    yield paragraph(" ".join([*(syntax.leading_detached_comments if syntax else ()), comments.get((12,), "")]))
    for index, service in enumerate(file.service):
        yield f"### service {file.package}.{service.name}"
        yield "\n".join(
            _method(method, comments, (_SERVICE, index, _METHOD, n)) for n, method in enumerate(service.method)
        )
    for index, message in enumerate(file.message_type):
        yield from _message(message, comments, (_MESSAGE, index), message.name)


def _method(method: descriptor_pb2.MethodDescriptorProto, comments: Comments, path: tuple[int, ...]) -> str:
    asked = f"{'stream ' * method.client_streaming}{_name(method.input_type)}"
    answered = f"{'stream ' * method.server_streaming}{_name(method.output_type)}"
    text = comments.get(path, "")
    return bullet(f"`{method.name}({asked}) returns {answered}`{f': {text}' if text else ''}")


def _message(
    message: descriptor_pb2.DescriptorProto, comments: Comments, path: tuple[int, ...], name: str
) -> Iterator[str]:
    if message.options.map_entry:
        return
    yield f"### {name}"
    yield paragraph(comments.get(path, ""))
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    yield "\n".join(_fields(message.field, entries, comments, path))
    for index, nested in enumerate(message.nested_type):
        yield from _message(nested, comments, (*path, _NESTED, index), f"{name}.{nested.name}")


def _fields(
    fields: Sequence[descriptor_pb2.FieldDescriptorProto],
    entries: Mapping[str, descriptor_pb2.DescriptorProto],
    comments: Comments,
    path: tuple[int, ...],
) -> Iterator[str]:
    for index, field in enumerate(fields):
        entry = entries.get(_name(field.type_name))
        kind = f"map<{', '.join(map(_kind, entry.field))}>" if entry else _kind(field)
        if field.label == field.LABEL_REPEATED and not entry:
            kind = f"repeated {kind}"
        text = comments.get((*path, _FIELD, index), "")
        yield bullet(f"`{field.name}` = {field.number}, {kind}{f': {text}' if text else ''}")


def _kind(field: descriptor_pb2.FieldDescriptorProto) -> str:
    kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return _name(field.type_name) if kind in ("message", "enum") else kind


def _name(full: str) -> str:
    return full.rsplit(".", 1)[-1]
