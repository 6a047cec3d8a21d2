"""A model's definition: a folder with model.yaml, and Python files where the model is a Keras module.

Each section of model.yaml is read in a module of its name beside this (docs/guide/model.md has examples). A second
file, restart.yaml, may list layers and tables that start anew in the first round of this definition
(`headrace apply --restart` adds it): [hidden_1, deep], or [all].

The dataclasses below hold the defaults. Unknown keys are refused at every level. No TensorFlow here: the registry
checks definitions with this module.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from common.definition.agreements import check_agreements
from common.definition.batches import check_augmentations, check_bucketing
from common.definition.evaluation import DEFAULT_CALIBRATION_FRACTION, Evaluation, parse_evaluation
from common.definition.event_window import EventWindow, read_event_window
from common.definition.export import Export, parse_export
from common.definition.feature_section import parse_features
from common.definition.feature_sources import check_against_schema, check_module_features, check_module_shapes
from common.definition.features import FeatureSpec, Text, Vocabulary
from common.definition.fields import Fields
from common.definition.gate import Gate, Measurable, measured_too, read_gate
from common.definition.heads import HEAD_KEYS, Head, read_heads, teaching_of
from common.definition.joined_labels import JoinedLabels, check_joined_labels, parse_joined_labels
from common.definition.labels import check_head
from common.definition.listed_layers import LAYERS, LAYERS_FILE, read_layers
from common.definition.losses import Task
from common.definition.metrics import KINDS, stored_name
from common.definition.metrics import check_head as check_head_metrics
from common.definition.parameters import FACTORIZATION_MACHINES, RNN_ESTIMATORS, EstimatorParameters, read_parameters
from common.definition.python_files import named_files
from common.definition.retention import Retention, parse_retention
from common.definition.rollout import Judge, Live, Rollout, check_slices, check_watched, parse_live, parse_rollout
from common.definition.serving import ServingSpec, parse_serving
from common.definition.towers import TWO_TOWER, counting
from common.definition.training import Training, parse_training
from common.definition.trees import TREE_ESTIMATORS, TreeParameters, check_tree_columns, parse_tree_parameters
from common.definition.triggers import Triggers, parse_triggers
from common.definition.warm_start import WarmStart, parse_warm_start
from common.errors import InvalidInput
from common.feature_keys import check_name
from common.quality import LOSSES, MEASURED_AS
from common.schema import Schema
from common.strict_yaml import read_yaml

DEFINITION_FILE = "model.yaml"
RESTART_FILE = "restart.yaml"
SIGNATURES_FILE = "signatures.yaml"
"""Says `may_change: true` (`headrace apply --allow-signature-change`): versions of this definition may break the
signatures of the version before them."""
ESTIMATORS = (
    "linear_classifier", "linear_regressor", "linear", "dnn_classifier", "dnn_regressor", "dnn",
    "wide_deep_classifier", "wide_deep_regressor", "wide_deep", *FACTORIZATION_MACHINES, *RNN_ESTIMATORS,
    *TREE_ESTIMATORS, TWO_TOWER,
)  # fmt: skip
_KEYS = (
    "name", "stream", "label", *HEAD_KEYS, "heads", "seed", "estimator", "module", "event_window", "features",
    "parameters", "training", "triggers", "evaluation", "gate", "export", "serving", "labels", "live", "rollout",
    "retention", "warm_start", "operations",
)  # fmt: skip
_FILE_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
MAX_BUNDLE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Definition:
    """Everything of model.yaml; exactly one of `estimator` and `module` is set.

    Attributes:
        estimator_parameters, trees: of an estimator, one of them.
        heads: what it learns and answers, in the order of model.yaml; their names differ.
        restart: layers and tables that start anew where the parent has another definition (RESTART_FILE).
        operations: libraries of TensorFlow operations among the definition's files, for the module and its exports.
        assets: the definition's files, by path, that each version carries: `export: assets`, and files of words.
    """

    name: str
    stream: str
    heads: tuple[Head, ...]
    seed: int
    estimator: str | None
    module: str | None
    features: Mapping[str, FeatureSpec]
    estimator_parameters: EstimatorParameters | None
    trees: TreeParameters | None
    module_parameters: Mapping[str, Any]
    training: Training
    triggers: Triggers
    evaluation: Evaluation
    gate: Gate
    export: Export
    serving: ServingSpec
    retention: Retention
    restart: tuple[str, ...] = ()
    warm_start: WarmStart | None = None
    operations: tuple[str, ...] = ()
    labels: JoinedLabels | None = None
    live: Live | None = None
    rollout: Rollout | None = None
    event_window: EventWindow | None = None
    assets: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Of the first head."""
        return self.heads[0].label

    @property
    def task(self) -> Task:
        """Of the first head."""
        return self.heads[0].task

    def seen(self, schema: Schema) -> Schema:
        """The stream's schema as the model sees its events."""
        return self.event_window.seen(schema) if self.event_window else schema

    def check_schema(self, schema: Schema) -> None:
        """Raises InvalidInput when a label or a feature does not fit the stream's schema."""
        schema = self.seen(schema)
        for head in self.heads:
            place = f"model {self.name}" + (f": head {head.name}" if len(self.heads) > 1 else "")
            check_head(head, schema, place=place, is_estimator=self.estimator is not None)
        recurrent = self.estimator_parameters.recurrent if self.estimator_parameters else None
        check_against_schema(self.features, schema, sequences=recurrent.sequence if recurrent else ())
        if self.module:
            check_module_shapes(self.features, schema)
        if buckets := self.training.bucket_by_sequence_length:
            check_bucketing(buckets, self.features if self.estimator else {}, schema)
        check_augmentations(self.training.augment, schema)
        self.training.summaries.check_against_schema(schema)
        self.evaluation.check_schema(schema, place=f"model {self.name}")
        self.triggers.check_schema(schema, place=f"model {self.name}")
        judges: dict[str, Judge | None] = {"rollout: judge": self.rollout.judge} if self.rollout else {}
        judges |= {"triggers: quality": self.triggers.quality} if self.triggers.quality else {}
        judges |= {"triggers: drift: scores": None} if self.triggers.drift and self.triggers.drift.scores else {}
        check_watched(self.live, judges, self.heads, schema, place=f"model {self.name}")
        check_slices(self.rollout, self.live, schema, place=f"model {self.name}")
        check_joined_labels(self.labels, schema, place=f"model {self.name}")
        if self.trees:
            check_tree_columns(self.trees, self.features, schema)


def parse_definition(files: Mapping[str, bytes]) -> Definition:
    """Reads and checks a definition folder, {relative path: content}. Raises InvalidInput: which section, which key,
    what was expected."""
    _check_files(files)
    fields = Fields(DEFINITION_FILE, read_yaml(files[DEFINITION_FILE], DEFINITION_FILE))
    fields.expect(_KEYS)
    name = check_name("model", fields.take("name"))
    stream = check_name("stream", fields.take("stream"))
    seed = fields.integer("seed", 0, minimum=0)
    if fields.has("estimator") and fields.has("module"):
        raise InvalidInput(f"model {name} has both estimator and module; it is one of them, leave the other out")
    if not fields.has("estimator") and not fields.has("module"):
        raise InvalidInput(
            f"model {name} needs either estimator ({', '.join(ESTIMATORS)}) or module (a Python file, or layers)"
        )
    estimator = fields.choice("estimator", ESTIMATORS) if fields.has("estimator") else None
    module = None if estimator else _module_path(fields, files)
    features = parse_features(fields.take("features") if estimator else fields.take("features", {}), files)
    if module:
        check_module_features(features)
    raw_parameters = fields.take("parameters", {})
    trees = parse_tree_parameters(raw_parameters, features, estimator) if estimator in TREE_ESTIMATORS else None
    parameters = read_parameters(estimator, raw_parameters, features) if estimator and not trees else None
    towers = parameters.towers if parameters else None
    features = counting(features, towers)
    classes, loss = _label_of_estimator(estimator, raw_parameters)
    heads = read_heads(fields, teaching_of(estimator, classes=classes, loss=loss))
    warm_start = parse_warm_start(fields.take("warm_start", None), files)
    training = parse_training(fields.take("training", {}), frozen=warm_start.freeze if warm_start else ())
    triggers = parse_triggers(fields.take("triggers", {}), model=name)
    evaluation, gate, training = _measured(fields, heads, training, triggers, files, own_metrics=module is not None)
    rollout = parse_rollout(fields.take("rollout", None))
    export = parse_export(fields.take("export", {}))
    definition = Definition(
        name=name,
        stream=stream,
        heads=heads,
        seed=seed,
        estimator=estimator,
        module=module,
        features=features,
        estimator_parameters=parameters,
        trees=trees,
        module_parameters={} if estimator else _module_parameters(raw_parameters, module),
        training=training,
        triggers=triggers,
        evaluation=evaluation,
        gate=replace(gate, canary=True) if rollout and rollout.canary else gate,
        export=export,
        serving=parse_serving(fields.take("serving", {})),
        retention=parse_retention(fields.take("retention", {})),
        restart=_restart(files),
        warm_start=warm_start,
        operations=_operations(fields, files, module),
        labels=parse_joined_labels(fields.take("labels", None)),
        live=parse_live(fields.take("live", None)),
        rollout=rollout,
        event_window=read_event_window(fields.take("event_window", None)),
        assets=_assets(export, features, files),
    )
    fields.finish()
    check_agreements(definition, files)
    _check_every_file_is_used(files, definition)
    _check_signatures_file(files)
    return definition


def _check_files(files: Mapping[str, bytes]) -> None:
    if DEFINITION_FILE not in files:
        raise InvalidInput(f"a definition needs {DEFINITION_FILE}; got {', '.join(sorted(files)) or 'no files'}")
    for path in files:
        if not _FILE_PATTERN.fullmatch(path):
            raise InvalidInput(f"file path {path!r} is not relative, with forward slashes and plain names")
    size = sum(len(content) for content in files.values())
    if size > MAX_BUNDLE_BYTES:
        raise InvalidInput(f"the definition is {size} bytes, at most {MAX_BUNDLE_BYTES} are taken")


_OWN_FILES = (DEFINITION_FILE, RESTART_FILE, SIGNATURES_FILE)


def _check_every_file_is_used(files: Mapping[str, bytes], definition: Definition) -> None:
    python = [path for path in files if path.endswith(".py")]
    used = named_files(files, [files[path] for path in (DEFINITION_FILE, *python)])
    if unused := files.keys() - used - {*_OWN_FILES, *python}:
        raise InvalidInput(
            f"model {definition.name}: neither model.yaml nor a Python file names {', '.join(sorted(unused))}"
        )


def _check_signatures_file(files: Mapping[str, bytes]) -> None:
    if SIGNATURES_FILE in files and read_yaml(files[SIGNATURES_FILE], SIGNATURES_FILE) != {"may_change": True}:
        raise InvalidInput(f"{SIGNATURES_FILE} says `may_change: true` or is left out")


def _restart(files: Mapping[str, bytes]) -> tuple[str, ...]:
    if RESTART_FILE not in files:
        return ()
    named = Fields(RESTART_FILE, {"layers": read_yaml(files[RESTART_FILE], RESTART_FILE)}).texts("layers")
    if not named:
        raise InvalidInput(f"{RESTART_FILE} names no layer; leave it out, or list layers: [hidden_1, deep], or [all]")
    return named


def _module_path(fields: Fields, files: Mapping[str, bytes]) -> str:
    module = fields.text("module")
    if module == LAYERS and LAYERS_FILE not in files:
        return module
    if module not in files or not module.endswith(".py"):
        raise InvalidInput(
            f"model.yaml: module {module!r} is no Python file of the definition: {', '.join(sorted(files))}"
        )
    return module


def _operations(fields: Fields, files: Mapping[str, bytes], module: str | None) -> tuple[str, ...]:
    libraries = fields.texts("operations", (), may_be_empty=True)
    for library in libraries:
        if library not in files or not library.endswith(".so") or not library.removesuffix(".so").isidentifier():
            raise InvalidInput(
                f"model.yaml: operations names {library!r}, expected a library of the definition such as zero_out.so: "
                f"{', '.join(sorted(files))}"
            )
    if libraries and not module:
        raise InvalidInput("model.yaml: operations are used by a module; an estimator takes none")
    return libraries


def _assets(export: Export, features: Mapping[str, FeatureSpec], files: Mapping[str, bytes]) -> dict[str, bytes]:
    for path in export.assets:
        if path not in files:
            raise InvalidInput(
                f"export: assets names {path!r}, expected a file of the definition: {', '.join(sorted(files))}"
            )
    looked_up = [spec.ids if isinstance(spec, Text) else spec for spec in features.values()]
    words = [vocabulary.file for vocabulary in looked_up if isinstance(vocabulary, Vocabulary) and vocabulary.file]
    return {path: files[path] for path in (*export.assets, *words)}


def _module_parameters(section: object, module: str | None) -> Mapping[str, Any]:
    if not isinstance(section, Mapping):
        raise InvalidInput(f"parameters must be a mapping, got {section!r}")
    if module == LAYERS:
        read_layers(section)
    return dict(section)


def _label_of_estimator(estimator: str | None, raw_parameters: object) -> tuple[int, str]:
    """parameters.classes and parameters.loss of an estimator with a single label; 0 and "" where they are left out."""
    if estimator is None or not isinstance(raw_parameters, Mapping):
        return 0, ""
    fields = Fields("parameters", raw_parameters)
    has_classes, has_loss = fields.has("classes"), fields.has("loss")
    classes = fields.integer("classes", 2, minimum=2, maximum=100_000) if has_classes else 0
    return classes, fields.text("loss") if has_loss else ""


def _calibrating(heads: Sequence[Head], evaluation: Evaluation) -> float:
    """Raises InvalidInput where there is a share for nothing, or nothing to take it from."""
    head = next((head.name for head in heads if head.calibration), None)
    if head is None:
        if evaluation.calibration_fraction:
            raise InvalidInput("evaluation: calibration_fraction is given, and no head has calibration")
        return 0.0
    if not evaluation.holdout_fraction:
        raise InvalidInput(f"head {head}: calibration needs held-out examples; evaluation: holdout_fraction is 0")
    return evaluation.calibration_fraction or DEFAULT_CALIBRATION_FRACTION


def _ranked_group(heads: Sequence[Head]) -> str:
    """What all ranking heads order; empty where there is none."""
    groups = dict.fromkeys(head.group for head in heads if head.group)
    if len(groups) > 1:
        raise InvalidInput(f"heads: a batch is made of whole groups of one feature, and group is {', '.join(groups)}")
    return next(iter(groups), "")


def _measured(
    fields: Fields,
    heads: Sequence[Head],
    training: Training,
    triggers: Triggers,
    files: Mapping[str, bytes],
    *,
    own_metrics: bool,
) -> tuple[Evaluation, Gate, Training]:
    """How a version is measured and judged: what the gate, an early stop and a trigger ask for is measured too."""
    tasks = {head.name: head.task for head in heads}
    evaluation = parse_evaluation(fields.take("evaluation", {}), tasks, files)
    evaluation = replace(evaluation, calibration_fraction=_calibrating(heads, evaluation))
    if group := _ranked_group(heads):
        evaluation = evaluation.of_ranking(group)
    measurable = Measurable(tasks, evaluation, own_metrics)
    gate = read_gate(fields.take("gate", {}), measurable)
    if training.evaluate_every_steps and not evaluation.has_judges:
        raise InvalidInput("training: evaluate_every_steps needs held-out examples; evaluation: holdout_fraction is 0")
    if stopping := training.early_stopping:
        found = measurable.found(stopping.metric, place="early_stopping")
        if found and KINDS[found[1].kind].needs_groups:
            raise InvalidInput(f"early_stopping: {stopping.metric} is measured at the end of a round only")
        name = stored_name(tasks, found[0], found[1].name) if found else stopping.metric
        training = replace(training, early_stopping=replace(stopping, metric=name))
    names = [rule.metric for rule in gate.all_rules]
    names += [stopping.metric] if stopping else []
    if triggers.quality:
        if not evaluation.has_judges:
            raise InvalidInput("triggers: quality needs held-out examples; evaluation: holdout_fraction is 0")
        if heads[0].task in LOSSES[triggers.quality.metric]:
            names.append(stored_name(tasks, heads[0].name, MEASURED_AS[triggers.quality.metric]))
    metrics = measured_too(evaluation, names, measurable)
    for head in heads:
        check_head_metrics(head.name, metrics[head.name], levels=head.levels, class_count=head.classes)
    return replace(evaluation, metrics=metrics), gate, training
