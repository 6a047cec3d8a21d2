"""common/definition/keras_names.json: what Keras has by name, and which options each takes, read off Keras's sources.

The sources are parsed, not imported: TensorFlow would take seconds to start. A definition may name what the table
holds; the trainer makes it with Keras's class or function. An option whose type a signature does not tell is named in
_TYPES below; one that is nowhere ends the generation with a sentence.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docs.generate.markdown import bullet, page, paragraph

TABLE = Path(__file__).parents[2] / "common" / "definition" / "keras_names.json"
_KINDS: Mapping[str, tuple[str, frozenset[str]]] = {
    "optimizers": ("optimizers", frozenset({"learning_rate"})),
    "schedules": ("optimizers.schedules", frozenset()),
    "losses": ("losses", frozenset({"reduction"})),
    "metrics": ("metrics", frozenset()),
    "initializers": ("initializers", frozenset({"seed", "input_axes", "output_axes"})),
    "regularizers": ("regularizers", frozenset()),
    "activations": ("activations", frozenset({"x"})),
    "augmentations": ("layers", frozenset({"seed", "data_format"})),
}
"""By kind: the package below keras, and options that are not for a definition to say: the round gives them."""
_AUGMENTATION = re.compile(r"Random\w+|RandAugment|AugMix|MixUp|CutMix|Solarization")
_OF_IMAGES = "keras.src.layers.preprocessing.image_preprocessing."
_NEVER = frozenset({"self", "name", "dtype", "args", "kwargs"})
_LEFT_OUT = frozenset({
    "Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap", "LearningRateSchedule", "Loss", "Metric",
    "MeanMetricWrapper", "Initializer", "Regularizer", "RandomInitializer", "STFT", "CTC",
    "get", "serialize", "deserialize",
})  # fmt: skip
"""Bases, wrappers and what needs more than options."""
_SPELT: Mapping[str, str] = {
    "AdamW": "adamw", "RMSprop": "rmsprop", "ScheduleFreeAdamW": "schedule_free_adamw", "FBetaScore": "fbeta_score",
}  # fmt: skip
"""Names that the rule of snake_case would tear apart."""
_TYPES: Mapping[str, str] = {
    "weight_decay": "number", "clipnorm": "number", "clipvalue": "number", "global_clipnorm": "number",
    "ema_overwrite_frequency": "integer", "loss_scale_factor": "number", "gradient_accumulation_steps": "integer",
    "exclude_layers": "texts", "adam_lr_ratio": "number", "initial_learning_rate": "number", "decay_steps": "integer",
    "decay_rate": "number", "first_decay_steps": "integer", "warmup_target": "number", "boundaries": "integers",
    "values": "numbers", "thresholds": "numbers", "num_labels": "integer", "label_weights": "numbers",
    "threshold": "number", "average": "text", "num_classes": "integer", "target_class_ids": "integers",
    "ignore_class": "integer", "top_k": "integer", "class_id": "integer", "recall": "number", "precision": "number",
    "specificity": "number", "sensitivity": "number", "axis": "integer", "max_value": "number", "b": "number",
    "default_value": "number", "label_smoothing": "number", "factor": "range", "height_factor": "range",
    "width_factor": "range", "x_factor": "range", "y_factor": "range", "scale": "range", "value_range": "numbers",
    "brightness_factor": "range", "contrast_factor": "range", "saturation_factor": "range", "hue_factor": "range",
    "addition_factor": "range", "threshold_factor": "range", "height": "integer", "width": "integer",
    "fill_value": "number", "sigma": "range",
}  # fmt: skip
_MOVING = ("RandomElasticTransform", "RandomRotation", "RandomShear", "RandomTranslation", "RandomZoom")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    **{f"{name}.fill_mode": ("reflect", "wrap", "constant", "nearest") for name in _MOVING},
    **{
        f"{name}.interpolation": ("nearest", "bilinear")
        for name in (
            *_MOVING,
            "RandomPerspective",
            "RandAugment",
            "AugMix",
        )
    },
    "RandomFlip.mode": ("horizontal", "vertical", "horizontal_and_vertical"),
    "VarianceScaling.mode": ("fan_in", "fan_out", "fan_avg"),
    "VarianceScaling.distribution": ("normal", "truncated_normal", "untruncated_normal", "uniform"),
    "OrthogonalRegularizer.mode": ("rows", "columns"),
    "AUC.curve": ("ROC", "PR"),
    "AUC.summation_method": ("interpolation", "minoring", "majoring"),
    "F1Score.average": ("micro", "macro", "weighted"),
    "FBetaScore.average": ("micro", "macro", "weighted"),
    "R2Score.class_aggregation": ("uniform_average", "variance_weighted_average"),
}


def document() -> str:
    """The table as JSON, a name a line."""
    kinds = {kind: dict(sorted(_members(*where))) for kind, where in _KINDS.items()}
    parts = [f'"keras": {json.dumps(version("keras"))}']
    for kind, names in kinds.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in names.items())
        parts.append(f"{json.dumps(kind)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def page_of_names() -> str:
    """docs/reference/keras-names.md."""
    table = json.loads(document())
    intro = paragraph(
        f"Keras {table['keras']} has these by name. A definition may name them, with their options; an option that is "
        f"not listed is refused. Required options have no default here."
    )
    parts = [section for kind in _KINDS for section in (f"## {kind}", _names(table[kind]))]
    return page("Keras's names", __name__, intro, *parts)


def _names(entries: Mapping[str, Any]) -> str:
    shared = _shared(entries)
    lines = [
        bullet(f"`{name}`" + ": " * bool(said) + ", ".join(said))
        for name, entry in entries.items()
        for said in [[_said(key, option) for key, option in entry["options"].items() if key not in shared]]
    ]
    if shared:
        lines.insert(0, bullet("all of them: " + ", ".join(_said(key, option) for key, option in shared.items())))
    return "\n".join(lines)


def _shared(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Options that every one has with the same default."""
    first, *others = (entry["options"] for entry in entries.values())
    return {key: said for key, said in first.items() if all(other.get(key) == said for other in others)}


def _said(key: str, option: Mapping[str, Any]) -> str:
    if option.get("is_required"):
        return f"`{key}`"
    return f"`{key}: {json.dumps(option['default'])}`"


def _members(package: str, skipped: frozenset[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for public, module, own in _public(package):
        if package == "layers" and not (module.startswith(_OF_IMAGES) and _AUGMENTATION.fullmatch(public)):
            continue
        node = _found(module, own)
        if public in _LEFT_OUT or node is None or (isinstance(node, ast.ClassDef) != (package != "activations")):
            continue
        yield snake_case(public), {"keras": public, "options": dict(_options(node, public, skipped | _NEVER))}


def _public(package: str) -> Iterator[tuple[str, str, str]]:
    """(public name, module that has it, its name there), without a class's other spellings."""
    seen = set[tuple[str, str]]()
    for node in ast.parse(_source(f"keras.{package}")).body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("keras.src."):
            continue
        for name in node.names:
            public, where = name.asname or name.name, str(node.module)
            if (where, name.name) not in seen and (package == "activations" or public[0].isupper()):
                seen.add((where, name.name))
                yield public, where, name.name


def _found(module: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    for node in ast.parse(_source(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    return None


def _source(module: str) -> str:
    spec = find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent.joinpath(*module.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def _options(
    node: ast.ClassDef | ast.FunctionDef, owner: str, skipped: frozenset[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    function = node
    if isinstance(node, ast.ClassDef):
        inits = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        if not inits:
            return
        function = inits[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
    for argument, default in zip(arguments, defaults, strict=True):
        if argument.arg not in skipped:
            yield argument.arg, _option(owner, argument.arg, default)


def _option(owner: str, name: str, default: ast.expr | None) -> dict[str, Any]:
    value = None if default is None or isinstance(default, ast.Name) else ast.literal_eval(default)
    if isinstance(default, ast.Name):  # RandomFlip's mode, a constant of its module
        value = default.id.lower()
    choices = _CHOICES.get(f"{owner}.{name}")
    by_value = {bool: "flag", int: "integer", float: "number", str: "text"}
    kind = "text" if choices else _TYPES.get(name) or by_value.get(type(value))
    if kind is None:
        raise SystemExit(f"docs: Keras's {owner} takes {name}, whose type nothing tells; add it to {__name__}")
    option: dict[str, Any] = {"type": kind}
    if default is None:
        return option | {"is_required": True}
    return option | {"default": value} | ({"choices": choices} if choices else {})


def snake_case(name: str) -> str:
    """As Keras spells what it has: mean_squared_error, mean_iou, l1_l2, adamw."""
    if name in _SPELT:
        return _SPELT[name]
    apart = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name.replace("IoU", "Iou"))
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", apart).lower()
