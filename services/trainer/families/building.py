"""Makes a definition's model: an estimator's network from its features, or what a user's module builds, checked against
the heads.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import keras
from keras.src.random.seed_generator import global_seed_generator

from common.definition.model import Definition
from common.schema import Feature, Schema
from services.trainer import determinism, keras_internals
from services.trainer.families import bottleneck, hidden_state, module_checks, module_inputs, quantized
from services.trainer.families.compiled import compiled_of
from services.trainer.families.estimators.batch_tables import NO_TABLES, BatchTable
from services.trainer.families.estimators.network import build_network, needed_features
from services.trainer.families.heads import built_heads
from services.trainer.families.keras_module import build_from_module
from services.trainer.families.model import BuiltModel
from services.trainer.families.shared_context import SharedContext
from services.trainer.families.user_module import UserModule
from services.trainer.families.wiring import Wiring, wiring_of
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transform


def build(
    definition: Definition,
    schema: Schema,
    statistics: Statistics,
    module: UserModule | None,
    *,
    seed: int,
    tables: Mapping[str, BatchTable] = NO_TABLES,
) -> BuiltModel:
    """Builds it from the seed: equal arguments give equal initial weights and equal variable paths.

    Args:
        tables: by name, what an estimator takes in place of new embedding tables.

    Raises:
        DefinitionFailedError: a user's module does not give a usable model.
    """
    seed_state = determinism.start_from_seed(seed, keeps_kernels=module is None)
    with _computing_in(definition.training.mixed_precision):
        if module is None:
            built = _build_estimator(definition, schema, statistics, seed_state, tables)
        else:
            built = _build_module(definition, schema, statistics, module)
    keras_internals.leave_cudnn(built.network)
    if definition.training.quantize_aware:
        quantized.make_aware(built.network, definition.module or str(definition.estimator))
    return built


@contextmanager
def _computing_in(precision: str) -> Iterator[None]:
    """Layers that are made inside compute in it and keep float32 weights; those with a dtype of their own keep that."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision if precision == "float32" else f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _build_module(definition: Definition, schema: Schema, statistics: Statistics, module: UserModule) -> BuiltModel:
    path = str(definition.module)
    with hidden_state.variables_made() as made, hidden_state.no_setting_changed(path):
        network, wiring = build_from_module(module, schema, definition)
    seed_state = global_seed_generator().state  # not that of before: build_model may have called set_random_seed
    compiled = compiled_of(
        network, path, heads=definition.heads, optimizer=definition.training.optimizer, own_loss=module.loss
    )
    module_checks.check_precision(definition, network, compiled)
    widths = {
        name: int(wiring.shape_of(name)[-1] or 0) if len(wiring.shape_of(name)) > 1 else 1 for name in wiring.taught
    }
    heads = built_heads(definition.heads, schema, widths)
    for head in heads:
        module_checks.check_width(head, widths[head.name], path)
    module_checks.check_own_losses(module, definition, path)
    transform, inputs = _inputs_of_module(definition, schema, statistics, wiring)
    cut_at = bottleneck.cut(definition, network, wiring, module, compiled)
    wiring = bottleneck.tail_wiring(cut_at) if cut_at else wiring
    return BuiltModel(
        definition, schema, inputs, transform, network, heads, module.loss, module.metrics, seed_state, wiring,
        compiled, module.adapt, module.hooks, cut_at,
        shared=SharedContext.of(definition.export.context, inputs, transform),
        unknown=hidden_state.unknown_to_keras([*module.made, *made], network, compiled.optimizers),
    )  # fmt: skip


def _inputs_of_module(
    definition: Definition, schema: Schema, statistics: Statistics, wiring: Wiring
) -> tuple[Transform | None, tuple[Feature, ...]]:
    """What makes the inputs that are features of the definition, and the raw features below all inputs."""
    made = [name for name in wiring.columns if name in definition.features]
    raw = {feature.name: feature for feature in module_inputs.features_of(schema, set(wiring.columns) - set(made))}
    transform = Transform(definition.features, made, statistics, schema) if made else None
    raw |= {name: schema.feature(name) for name in (transform.raw_names if transform else ())}
    return transform, tuple(raw[name] for name in sorted(raw))


def _build_estimator(
    definition: Definition,
    schema: Schema,
    statistics: Statistics,
    seed_state: keras.Variable,
    tables: Mapping[str, BatchTable],
) -> BuiltModel:
    parameters = definition.estimator_parameters
    assert parameters is not None
    transform = Transform(definition.features, needed_features(parameters), statistics, schema)
    inputs = tuple(schema.feature(name) for name in transform.raw_names)
    heads = built_heads(definition.heads, schema)
    network = build_network(definition, transform, heads, tables)
    names = [head.name for head in heads]
    is_single = len(heads) == 1
    taught = {names[0]: "outputs"} if is_single else {name: name for name in names}
    wiring = wiring_of(network.input, network.output, ("outputs",) if is_single else tuple(sorted(names)), taught)
    return BuiltModel(
        definition, schema, inputs, transform, network, heads, None, None, seed_state, wiring,
        batch_tables=tables, shared=SharedContext.of(definition.export.context, inputs, transform),
    )  # fmt: skip
