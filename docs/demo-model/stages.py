"""One training loop for every stage: seeded, resumable after a kill, with a progress line."""
import math
import os
import time

import torch


class Stage:
    """Runs `step(k) -> (loss, {metric: value})` for k in range(steps) and keeps a checkpoint in `path`.

    What step k sees must depend on the seed and on k alone; then a run that was killed and started again is the same run.
    """

    def __init__(self, name, path, module, params, steps, lr, warmup=100, floor=0.0, weight_decay=0.05, save_seconds=60):
        self.name, self.path, self.module, self.steps, self.save_seconds = name, path, module, steps, save_seconds
        self.params = list(params)
        decay = [p for p in self.params if p.ndim > 1]
        plain = [p for p in self.params if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}],
                                           lr=lr, betas=(0.9, 0.98))
        self.lr, self.warmup, self.floor = lr, warmup, floor
        self.start, self.spent = 0, 0.0
        if os.path.exists(path):
            saved = torch.load(path, map_location="cpu", weights_only=True)
            module.load_state_dict(saved["model"])
            if saved["step"] < steps:
                self.optimizer.load_state_dict(saved["optimizer"])
            self.start, self.spent = saved["step"], saved["seconds"]

    def rate(self, k):
        warm = min(1.0, (k + 1) / self.warmup)
        return self.lr * warm * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, k / self.steps))))

    def save(self, step, seconds):
        part = self.path + ".part"
        torch.save({"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step, "seconds": seconds}, part)
        os.replace(part, self.path)

    def run(self, step, evaluate=None, evaluate_every=0, report_every=25):
        if self.start >= self.steps:
            print(f"{self.name}: complete ({self.steps} steps)", flush=True)
            return self.spent
        if self.start:
            print(f"{self.name}: resumed at step {self.start}", flush=True)
        began, saved, sums, count = time.time(), time.time(), {}, 0
        for k in range(self.start, self.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(k)
            loss, metrics = step(k)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.params, 1.0)
            self.optimizer.step()
            for name, value in {"loss": loss.item(), **metrics}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            count += 1
            done = k + 1
            if done % report_every == 0 or done == self.steps:
                now = time.time()
                each = (now - began) / (done - self.start)
                figures = "  ".join(f"{n} {v / count:.4f}" for n, v in sums.items())
                print(f"{self.name} {done}/{self.steps}  {figures}  lr {self.rate(k):.1e}  {each:.2f} s/step  "
                      f"left {(self.steps - done) * each / 60:.1f} min", flush=True)
                sums, count = {}, 0
            if evaluate and evaluate_every and done % evaluate_every == 0 and done < self.steps:
                evaluate(done)
            if time.time() - saved > self.save_seconds or done == self.steps:
                self.save(done, self.spent + time.time() - began)
                saved = time.time()
        if evaluate:
            evaluate(self.steps)
        return self.spent + time.time() - began
