"""The model of a run as it comes, and as it leaves."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from typing import Any

import torch

from lca.finetune.checkpoint import folder_written, weights_gather
from lca.finetune.config import Config, ConfigError, Random
from lca.finetune.curriculum import knobs_last
from lca.finetune.losses import Student
from lca.patching import override, patch

#: What names of models are called where transformers and PEFT fetch models from: an adapter says what it is for.
HUB = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]


def base_folder(config: Config, main: bool) -> pathlib.Path:
    """The model as a Hugging Face folder; a GGUF file or a name is exported once, beside the run."""
    if os.path.isdir(config.model):
        return pathlib.Path(config.model)
    target = pathlib.Path(config.output) / "base"
    if target.exists() or not main:
        return target
    from lca.engine import NAMES
    from lca.export import export
    if config.model not in NAMES and not os.path.isfile(config.model):
        raise ConfigError(f"model: there is no folder or file {config.model}")
    with folder_written(target) as draft:
        try:
            export(config.model, draft)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model: {_line(error)}") from None
    return target


def _load(folder: pathlib.Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
    logging.disable_progress_bar()  # the run has its own
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except Exception as error:  # transformers raises many kinds
        raise ConfigError(f"model: {folder} cannot be loaded: {_line(error)}") from None


def _patch(model: Any, config: Config) -> None:
    """Patches a model with the last stage's settings, and checks those of all stages."""
    fixed = {name: value for name, value in config.attention.items() if name != "preset"}
    try:
        patch(model, config.attention.get("preset", "training"), **fixed, **knobs_last(config.stages[-1]))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"model, attention: {_line(error)}") from None
    for at, stage in enumerate(config.stages):
        for name in ("group", "window", "sink"):
            value = getattr(stage, name)
            for each in value.choices if isinstance(value, Random) else [value]:
                try:
                    with override(model, **{**knobs_last(stage), name: each}):
                        pass
                except (ValueError, TypeError) as error:
                    raise ConfigError(f"stages[{at}].{name}: {_line(error)}") from None


def student_make(config: Config, folder: pathlib.Path, bf16: bool) -> Student:
    """The student with its adapter, and the teacher where all weights are trained."""
    half = torch.bfloat16 if bf16 else torch.float32
    torch.manual_seed(config.seed)
    # Frozen weights stay in the type of the computation; trained ones are float32.
    model = _load(folder, half if config.lora else torch.float32)
    _patch(model, config)
    teacher = None
    if config.lora is None and config.loss.teacher:
        teacher = _load(folder, half).requires_grad_(False).eval()
        _patch(teacher, config)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora is not None:
        model = _adapted(model, config, folder, bf16)
    student = Student(model, config.loss.chunk, teacher, config.loss.reach)
    if config.init is not None:
        weights_begin(student, pathlib.Path(config.init))
    if config.compile:
        _compile(student.causal.model.layers, "inductor" if config.compile is True else config.compile)
    return student


def weights_begin(student: Student, path: pathlib.Path) -> None:
    """Begins with the trained weights of an adapter's folder or of a checkpoint."""
    from safetensors.torch import load_file
    trained = {name: each for name, each in student.named_parameters() if each.requires_grad}
    try:
        if (path / "state.pt").exists():
            found = torch.load(path / "state.pt", map_location="cpu", weights_only=True)["model"]
        elif (path / "adapter_model.safetensors").exists():
            found = {f"model.{name.removesuffix('.weight')}.default.weight": value
                     for name, value in load_file(path / "adapter_model.safetensors").items()}
        else:
            raise ConfigError(f"init: {path} is neither an adapter nor a checkpoint")
    except ConfigError:
        raise
    except Exception as error:  # torch and safetensors raise many kinds
        raise ConfigError(f"init: {path} cannot be read: {_line(error)}") from None
    for name, each in trained.items():
        if name not in found or found[name].shape != each.shape:
            raise ConfigError(f"init: {path} does not fit the model and its adapter: {name}")
    if len(found) != len(trained):
        raise ConfigError(f"init: {path} has weights that are not trained here")
    with torch.no_grad():
        for name, each in trained.items():
            each.copy_(found[name])


def _compile(layers: Any, backend: str) -> None:
    """Compiles what lies around attention, once for all layers: attention itself knows its layer's number."""
    from transformers import AttentionInterface

    from lca import patching
    if backend not in torch._dynamo.list_backends(exclude_tags=()):
        raise ConfigError(f"compile: torch has no backend {backend}")
    AttentionInterface.register(patching.NAME, torch.compiler.disable(patching._attention))
    # One graph for each shape and mode: stages, teacher, evaluation.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    for layer in layers:
        layer.compile(backend=backend, dynamic=False)


def _adapted(model: Any, config: Config, folder: pathlib.Path, bf16: bool) -> Any:
    try:
        import peft
    except ImportError:
        raise ConfigError("lora needs peft: pip install 'lca[finetune]'") from None
    options = peft.LoraConfig(r=config.lora.rank, lora_alpha=config.lora.alpha, lora_dropout=0.0, bias="none",
                              target_modules=list(config.lora.targets), task_type="CAUSAL_LM")
    try:
        adapted = peft.get_peft_model(model, options)
    except ValueError as error:
        raise ConfigError(f"lora.targets: {_line(error)}") from None
    named = config.model in HUB and not os.path.exists(config.model)
    adapted.peft_config["default"].base_model_name_or_path = HUB[config.model] if named else str(folder)
    if bf16:  # autocast chooses the type; PEFT would copy every input to float32 first
        for module in adapted.modules():
            if hasattr(module, "cast_input_dtype_enabled"):
                module.cast_input_dtype_enabled = False
    return adapted


def result_write(config: Config, student: torch.nn.Module, inner: Student, folder: pathlib.Path, stage: int,
                 main: bool) -> pathlib.Path:
    """Writes OUT/adapter or OUT/model with a stage's settings; to be called on all processes, the first one writes."""
    patch(inner.causal, **knobs_last(config.stages[stage]))
    weights = {name.removeprefix("model."): value for name, value in weights_gather(student).items()}
    target = pathlib.Path(config.output) / ("adapter" if config.lora else "model")
    if not main:
        return target
    with folder_written(target) as draft:
        if config.lora:
            _adapter_write(inner, weights, draft)
        else:
            _model_write(inner, weights, folder, draft)
    return target


def _adapter_write(inner: Student, weights: dict[str, torch.Tensor], draft: pathlib.Path) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file
    found = get_peft_model_state_dict(inner.model, state_dict=weights, save_embedding_layers=False)
    path = draft / "adapter_model.safetensors"
    save_file({name: value.to(torch.bfloat16).contiguous() for name, value in found.items()}, path, {"format": "pt"})
    path.chmod(0o644)  # safetensors leaves it to its owner alone
    options = inner.model.peft_config["default"]
    training, targets = options.inference_mode, options.target_modules
    # peft keeps the names in a set: sorted, two runs of one recipe write the same file.
    options.inference_mode, options.target_modules = True, sorted(targets)
    try:
        options.save_pretrained(draft)
    finally:
        options.inference_mode, options.target_modules = training, targets
    (draft / "lca.json").write_text(json.dumps(inner.causal.config.lca, indent=1) + "\n", encoding="utf-8")


def _model_write(inner: Student, weights: dict[str, torch.Tensor], folder: pathlib.Path, draft: pathlib.Path) -> None:
    dtype = getattr(torch, str(json.loads((folder / "config.json").read_text()).get("dtype", "float32")))
    if inner.causal.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    inner.causal.save_pretrained(draft, state_dict={name: value.to(dtype) for name, value in weights.items()})
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        if (folder / name).exists():
            shutil.copy(folder / name, draft / name)
