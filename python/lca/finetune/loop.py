"""The run: steps, evaluation, samples, checkpoints."""

from __future__ import annotations

import dataclasses
import fcntl
import math
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from lca.data import Packed
from lca.data.tokenizers import tokenizer_open
from lca.finetune import checkpoint as files
from lca.finetune.config import Config, ConfigError, plain
from lca.finetune.curriculum import Curriculum, Part, Place, Step, knobs_last, micro_batches, part_of
from lca.finetune.fused import obstacle
from lca.finetune.losses import SUMS, places_of
from lca.finetune.models import base_folder, result_write, student_make
from lca.finetune.report import Report
from lca.patching import override

# What a resumed run may have otherwise: none of it changes the weights.
_FREE = ("output", "evaluation", "samples", "checkpoint", "seconds")


@dataclasses.dataclass(frozen=True)
class Result:
    folder: pathlib.Path  #: the adapter or the model
    steps: int
    tokens: int


def _accelerator(config: Config) -> tuple[Any, bool]:
    """accelerate's handle on devices and processes, and whether computation is in bf16."""
    try:
        import accelerate
    except ImportError:
        raise ConfigError("fine-tuning needs accelerate: pip install 'lca[finetune]'") from None
    on_gpu = torch.cuda.is_available() and config.device != "cpu"
    bf16 = config.precision == "bf16" or (config.precision == "auto" and on_gpu)
    found = accelerate.Accelerator(cpu=not on_gpu, mixed_precision="bf16" if bf16 else "no")
    kinds = accelerate.utils.DistributedType
    if found.distributed_type == kinds.MULTI_CPU and os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        # accelerate shards on GPUs alone; the CPU takes the same way through it.
        found.state.fsdp_plugin = accelerate.utils.FullyShardedDataParallelPlugin()
        found.state.distributed_type = kinds.FSDP
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    return found, bf16


class Later:
    """Numbers of a device on their way to the host; reading them does not wait for what the device does after them."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._event = None
        if numbers.is_cuda:
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = numbers

    def values(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()


class Trainer:
    """One run of a configuration."""

    def __init__(self, config: Config, as_json: bool = False, show: bool | None = None) -> None:
        self.config = config
        self._began = time.monotonic()
        self.output = pathlib.Path(config.output)
        self.accelerator, bf16 = _accelerator(config)
        self.main = self.accelerator.is_main_process
        self.curriculum = Curriculum(config, self.accelerator.process_index, self.accelerator.num_processes)
        self._held = self._evaluation_rows()
        self._lock = self._locked() if self.main else None
        if self.main:
            base_folder(config, True)
        self.accelerator.wait_for_everyone()
        self.base = base_folder(config, False)
        student = student_make(config, self.base, bf16)
        vocabulary = student.causal.config.vocab_size
        if self.curriculum.vocabulary > vocabulary:
            raise ConfigError(f"the data's tokenizer has {self.curriculum.vocabulary} tokens, the model {vocabulary}; "
                              "pack the data with the model's tokenizer")
        self._tokenizer = self._tokenizer_of() if config.samples and self.main else None
        options = config.optimizer
        trained = [each for each in student.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=options.rate, betas=tuple(options.betas),
                                      weight_decay=options.weight_decay,
                                      fused=self.accelerator.device.type == "cuda")
        self.inner = student
        if student._teacher[0] is not None:
            student._teacher[0].to(self.accelerator.device)
        self.student, self.optimizer = self.accelerator.prepare(student, optimizer)
        self.student.train()
        self._trained = [each for each in self.student.parameters() if each.requires_grad]
        self._untold: tuple | None = None
        self._fuse()
        self._resume()
        place = self.curriculum.place
        self.report = Report(self.output, config.tokens, place.step, place.tokens, as_json, show) if self.main else None

    # --- the beginning ---

    def _locked(self) -> Any:
        self.output.mkdir(parents=True, exist_ok=True)
        lock = open(self.output / ".lock", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise ConfigError(f"{self.output} is being written by another process") from None
        for folder in (self.output, self.output / "checkpoints"):
            files.leftovers_remove(folder)
        return lock

    def _tokenizer_of(self) -> Any:
        name = str(self.base) if (self.base / "tokenizer.json").exists() else self.curriculum.tokenizer
        try:
            return tokenizer_open(name)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"samples: {error}") from None

    def _fuse(self) -> None:
        """Takes the fused form of the model where it is wanted and possible."""
        wanted = self.config.fused
        if wanted is False or (wanted == "auto" and self.accelerator.device.type != "cuda"):
            return
        why = "all weights are trained" if self.config.lora is None else obstacle(self.inner.causal)
        if hasattr(self.student, "unshard"):
            why = "it is sharded"
        if why is None:
            self.inner.fuse(self.config.gradient_checkpointing)
        elif wanted is True:
            raise ConfigError(f"fused: the model has no fused form: {why}")

    def _resume(self) -> None:
        found = files.checkpoints(self.output / "checkpoints")
        if not found:
            return
        told = files.checkpoint_read(found[-1])
        now = plain(self.config)
        for name, value in now.items():
            if name not in _FREE and told["config"].get(name) != value:
                raise ConfigError(f"{self.output} was begun with another {name}; name a new output or use the "
                                  "configuration it was begun with")
        self.curriculum.load_state_dict(told["curriculum"])
        files.checkpoint_load(found[-1], self.student, self._raw_optimizer())

    def _raw_optimizer(self) -> torch.optim.Optimizer:
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the device; the host does not wait for it."""
        if self.accelerator.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.accelerator.device, non_blocking=True)

    def _inputs(self, part: Part, context: bool) -> tuple:
        """Ids, positions, places and documents of a part."""
        ids, positions, kinds = (torch.from_numpy(each) for each in (part.ids, part.positions, part.kinds))
        documents = None if part.documents is None else torch.from_numpy(part.documents)
        places = places_of(kinds, positions, context, self.config.loss.reach if self.config.loss.teacher else None)
        return self._moved(ids), self._moved(positions), places.to(self._moved), documents

    # --- a step ---

    def _weights(self, step: Step) -> tuple[float, float]:
        """Of the losses of text and answers."""
        loss, stage = self.config.loss, self.config.stages[step.stage]
        return (loss.text if stage.text is None else stage.text, loss.answer if stage.answer is None else stage.answer)

    def step(self, step: Step) -> None:
        config, loss = self.config, self.config.loss
        text_weight, answer_weight = self._weights(step)
        batch = self.curriculum.rows(step)
        teach = loss.teacher and text_weight > 0
        parts = [self._inputs(part, loss.context and teach)
                 for part in micro_batches(batch, config.stages[step.stage].micro)]
        counts = self._moved(torch.tensor([[len(places.text) + len(places.context), len(places.text),
                                            len(places.answer)] for _, _, places, _ in parts],
                                          dtype=torch.float64).sum(0).float())
        counts = self.accelerator.reduce(counts, "sum")
        scale = torch.where(counts > 0, self.accelerator.num_processes / counts.clamp(min=1), 0.0)
        total = torch.zeros(len(SUMS), device=self.accelerator.device)
        for ids, positions, places, documents in parts:
            sums = self.student(ids, positions, places, step.knobs, teach, documents)
            text = sums[0] * scale[0] if teach else sums[1] * scale[1]
            self.accelerator.backward(text_weight * text + answer_weight * sums[2] * scale[2])
            total += sums.detach()
        clip = config.optimizer.clip or math.inf
        norm = self.accelerator.clip_grad_norm_(self._trained, clip)
        for group in self.optimizer.param_groups:
            group["lr"] = step.rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of a sharded model
        numbers = torch.cat([self.accelerator.reduce(total, "sum"), counts, norm.detach().float().reshape(1)])
        before, self._untold = self._untold, (step, dataclasses.replace(self.curriculum.place), Later(numbers), teach)
        if before is not None:
            self._told(*before)

    def tell(self) -> None:
        """Reports the last step. Reports come a step late: the device has its next step before the host waits."""
        if self._untold is not None:
            before, self._untold = self._untold, None
            self._told(*before)

    def _told(self, step: Step, place: Place, numbers: Later, teach: bool) -> None:
        *sums, _ = values = numbers.values()
        counts, norm = values[len(SUMS):-1], values[-1]
        kl, text, answer = (value / count if count else 0.0 for value, count in zip(sums, counts))
        text_weight, answer_weight = self._weights(step)
        whole = text_weight * (kl if teach else text) + answer_weight * answer
        if not math.isfinite(whole) or not math.isfinite(norm):
            raise RuntimeError(f"step {place.step}: the loss is {whole}, its gradient {norm}; a lower rate may help. "
                               f"Checkpoints are in {self.output / 'checkpoints'}")
        if not self.main:
            return
        row = {"step": place.step, "stage": step.stage + 1, "tokens": place.tokens, "length": step.length,
               **{name: step.knobs[name] for name in ("group", "window", "sink")}, "rate": step.rate, "loss": whole,
               "kl": kl if teach else "", "text": text if counts[1] else "", "answer": answer if counts[2] else "",
               "text_tokens": int(counts[1]), "answer_tokens": int(counts[2]), "gradient": norm}
        self.report.step(row, step.length * self.config.stages[step.stage].rows(step.length))

    # --- evaluation and samples ---

    def _evaluation_rows(self) -> dict[str, tuple[Packed, int, int]]:
        """Sets by name: data, length, rows."""
        found = {}
        for name, each in (self.config.evaluation.sets.items() if self.config.evaluation else ()):
            try:
                packed = Packed(each.data)
                length = each.length or packed.row_length
                if length is None:
                    raise ValueError("length is missing: the folder has no row length of its own")
                rows = min(each.rows, packed.row_count(length))
                if not rows:
                    raise ValueError(f"{each.data} has no row of {length} tokens")
            except (OSError, ValueError) as error:
                raise ConfigError(f"evaluation.sets.{name}: {error}") from None
            found[name] = packed, length, rows
        return found

    def held_out(self, name: str) -> Iterator[tuple]:
        """This process's rows of an evaluation set, a batch at a time: ids, positions, places and documents for
        `student`."""
        packed, length, rows = self._held[name]
        size, world = self.config.evaluation.batch, self.accelerator.num_processes
        # Every process makes as many passes; one without rows of its own repeats the last row for nothing.
        for first in range(0, rows, size * world):
            own = [first + self.accelerator.process_index * size + at for at in range(size)]
            ids, kinds, starts = zip(*(packed.row(min(row, rows - 1), length) for row in own))
            kinds = numpy.stack([kind if row < rows else kind * 0 for kind, row in zip(kinds, own)])
            yield self._inputs(part_of(numpy.stack(ids), kinds, starts), False)

    @torch.no_grad()
    def evaluate(self) -> None:
        """Held-out losses by kind, with the settings of the last stage."""
        self.tell()
        knobs = knobs_last(self.config.stages[-1])
        for name in self._held:
            totals = torch.zeros(len(SUMS) + 2, dtype=torch.float64)
            for ids, positions, places, documents in self.held_out(name):
                sums = self.student(ids, positions, places, knobs, self.config.loss.teacher, documents)
                totals[:4] += sums.double().cpu()
                totals[4:] += torch.tensor([len(places.text), len(places.answer)])
            totals = self.accelerator.reduce(totals.float().to(self.accelerator.device), "sum").tolist()
            if self.main:
                self.report.evaluation(self._evaluation_row(name, *totals))
        if self.main:
            self.report.draw()

    def _evaluation_row(self, name: str, kl: float, text: float, answer: float, hits: float, texts: float,
                        answers: float) -> dict[str, Any]:
        place = self.curriculum.place
        row: dict[str, Any] = {"step": place.step, "tokens": place.tokens, "set": name, "text_tokens": int(texts),
                               "answer_tokens": int(answers), "answer_accuracy": hits / answers if answers else "",
                               "kl": kl / texts if texts and self.config.loss.teacher else ""}
        for kind, value, count in (("text", text, texts), ("answer", answer, answers)):
            row[f"{kind}_loss"] = value / count if count else ""
            row[f"{kind}_perplexity"] = math.exp(min(value / count, 700)) if count else ""
        return row

    @torch.no_grad()
    def sample(self) -> None:
        """Greedy replies; one process makes them, so a sharded model has none."""
        self.tell()
        if self.accelerator.num_processes > 1:
            return
        causal = self.inner.causal
        causal.eval()
        try:
            with override(causal, **knobs_last(self.config.stages[-1])):
                for prompt in self.config.samples.prompts:
                    ids = torch.tensor([[*self._tokenizer.begin(), *self._tokenizer.special(prompt)]],
                                       device=self.accelerator.device)
                    with self.accelerator.autocast():
                        made = causal.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                               max_new_tokens=self.config.samples.tokens)
                    reply = self._tokenizer.decode(made[0, ids.shape[1]:].tolist())
                    self.report.sample({"step": self.curriculum.place.step, "prompt": prompt, "reply": reply})
        finally:
            causal.train()

    # --- the whole ---

    def save(self) -> None:
        self.tell()
        told = {"config": plain(self.config), "curriculum": self.curriculum.state_dict()}
        files.checkpoint_save(self.output / "checkpoints", self.curriculum.place.step, told, self.student,
                              self._raw_optimizer(), self.config.checkpoint.keep, self.main)
        if self.main:
            self.report.event("checkpoint", step=self.curriculum.place.step)

    def run(self) -> Result:
        config, place = self.config, self.curriculum.place
        if self.main:
            trained = sum(each.numel() for each in self._trained)
            sharded = hasattr(self.student, "unshard")
            self.report.event("start", step=place.step, tokens=place.tokens, total=config.tokens, trained=trained,
                              processes=self.accelerator.num_processes, sharded=sharded)
            self.report.say(f"{trained:,} trained weights, {config.tokens:,} tokens"
                            + (f"; goes on after step {place.step}" if place.step else ""))
        if config.evaluation and place.step == 0:
            self.evaluate()
        if self.main:
            self.report.resume_clock()
        following, over = self.curriculum.step(), False
        stage = len(config.stages) - 1
        while following is not None and not over:
            step, stage = following, following.stage
            self.step(step)
            following, over = self.curriculum.step(), self._late()
            self._between(stage, following is None or over, following is not None and following.stage != stage)
        target = result_write(config, self.student, self.inner, self.base, stage, self.main)
        if self.main:
            self.report.draw()
            self.report.event("end", step=place.step, tokens=place.tokens, result=str(target))
            self.report.say(f"{target}: the result; {self.output / 'curves.svg'}: the curves")
        return Result(target, place.step, place.tokens)

    def _late(self) -> bool:
        """Whether the time is over, for all processes alike."""
        if self.config.seconds is None:
            return False
        over = torch.tensor(float(time.monotonic() - self._began > self.config.seconds))
        if self.accelerator.num_processes > 1:
            over = self.accelerator.reduce(over.to(self.accelerator.device), "sum")
        return bool(over)

    def _between(self, stage: int, last: bool, ended: bool) -> None:
        """What is due after a step; `ended`: another stage follows."""
        config, step = self.config, self.curriculum.place.step

        def due(part: Any) -> bool:
            return part is not None and (last or step % part.every == 0)
        pauses = [ended, *map(due, (config.evaluation, config.samples, config.checkpoint))]
        if config.evaluation and (pauses[1] or ended):
            self.evaluate()
        if pauses[2]:
            self.sample()
        if pauses[3]:
            self.save()
        if ended:
            self.tell()
            result_write(config, self.student, self.inner, self.base, stage, self.main)
        if self.main and any(pauses):
            self.report.draw()
            self.report.resume_clock()

    def close(self) -> None:
        if self.main:
            self.report.close()
            self._lock.close()
        self.accelerator.end_training()


def finetune(config: Config, as_json: bool = False, show: bool | None = None) -> Result:
    """Runs a configuration to its end, or goes on with one that was interrupted."""
    trainer = Trainer(config, as_json, show)
    try:
        return trainer.run()
    finally:
        trainer.close()
