"""The smallest SavedModel that a registry takes, made of messages alone: a suite without TensorFlow can register it."""

from collections.abc import Mapping

from protos import saved_model_pb2, tfserving_pb2

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""{name: (dtype as TensorFlow names it, such as DT_FLOAT, shape)}"""


def saved_model(
    *,
    inputs: Shapes | None = None,
    outputs: Shapes | None = None,
    signature: str = "serving_default",
    tags: tuple[str, ...] = ("serve",),
    operations: tuple[str, ...] = ("Placeholder", "Identity"),
    mark: str = "",
) -> bytes:
    """saved_model.pb of one graph with one signature.

    Args:
        mark: makes files differ that say the same.
    """
    found = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    graph = found.meta_graphs.add()
    graph.meta_info_def.tags.extend(tags)
    graph.meta_info_def.tensorflow_version = "2.21.0"
    for number, operation in enumerate(operations):
        graph.graph_def.node.add(name=f"node_{number}{mark}", op=operation)
    if signature:
        definition = graph.signature_def[signature]
        definition.method_name = "tensorflow/serving/predict"
        for side, tensors in ((definition.inputs, inputs or {"x": ("DT_FLOAT", (-1,))}),
                              (definition.outputs, outputs or {"y": ("DT_FLOAT", (-1,))})):  # fmt: skip
            for name, (dtype, shape) in tensors.items():
                side[name].name = f"{name}:0"
                side[name].dtype = getattr(tfserving_pb2, dtype)
                for size in shape:
                    side[name].tensor_shape.dim.add(size=size)
    return found.SerializeToString(deterministic=True)
