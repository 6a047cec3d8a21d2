"""Signatures as TensorFlow Serving's messages."""

from base64 import b64decode

from protos import queue_pb2, tfserving_pb2
from services.serving.wire.prediction import default_rows, write_tensor
from services.serving.wire.replica_state import Signature
from services.serving.wire.tensors import write_tensor_proto


def default_inputs(signature: Signature) -> dict[str, tfserving_pb2.TensorProto]:
    """The values of inputs that a gRPC request may leave out."""
    return {name: tfserving_pb2.TensorProto.FromString(b64decode(text)) for name, text in signature.defaults.items()}


def shown_defaults(signature: Signature) -> dict[str, tfserving_pb2.TensorProto]:
    """As metadata shows them: the SavedModel's own, and one row of each input that is optional by the schema."""
    shown = default_inputs(signature)
    for name in signature.optional:
        tensor = queue_pb2.Tensor()
        write_tensor(tensor, name, default_rows(name, signature, 1))
        write_tensor_proto(tensor, shown.setdefault(name, tfserving_pb2.TensorProto()))
    return shown


def signature_text(signature: Signature) -> str:
    """A signature as messages show it."""
    proto = tfserving_pb2.SignatureDef()
    fill_signature(proto, signature)
    return str(proto)


def fill_signature(proto: tfserving_pb2.SignatureDef, signature: Signature) -> None:
    proto.method_name = signature.method_name
    proto.aliases.update(signature.aliases)
    proto.yes_no.extend(signature.yes_no)
    for name, default in shown_defaults(signature).items():
        proto.defaults[name].CopyFrom(default)
    for specs, infos in ((signature.inputs, proto.inputs), (signature.outputs, proto.outputs)):
        for name, spec in specs.items():
            info = infos[name]
            info.name = spec.tensor_name
            info.dtype = tfserving_pb2.DataType.Value(spec.dtype)  # type: ignore[assignment]  # the stub wants the wrapper
            info.tensor_shape.unknown_rank = spec.shape is None
            for size in spec.shape or ():
                info.tensor_shape.dim.add(size=size)
