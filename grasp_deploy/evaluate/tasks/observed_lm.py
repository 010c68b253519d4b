"""A model of lm-eval that reports its progress and refuses answers that it would cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lm_eval.api.model import LM

from grasp_deploy.errors import InputError

OnRequests = Callable[[int, int], None]  # requests done, and requests in all
PORTION_REQUESTS = 256


class ObservedLM(LM):
    """Wraps an LM of lm-eval; `on_requests` is called after each portion of requests.

    Raises InputError for an answer longer than the LM takes: only prompts may lose their beginning.
    """

    def __init__(self, lm: Any, on_requests: OnRequests | None) -> None:
        super().__init__()
        self.lm, self.on_requests = lm, on_requests

    def loglikelihood(self, requests: list[Any]) -> list[Any]:
        self._check_answers(requests)
        return self._in_portions(self.lm.loglikelihood, requests)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[Any]:
        return self._in_portions(self.lm.loglikelihood_rolling, requests)

    def generate_until(self, requests: list[Any]) -> list[Any]:
        return self._in_portions(self.lm.generate_until, requests)

    def _in_portions(self, answer: Callable[..., list[Any]], requests: list[Any]) -> list[Any]:
        if self.on_requests is None:
            return answer(requests, disable_tqdm=True)
        answers: list[Any] = []
        while len(answers) < len(requests):
            portion = requests[len(answers) : len(answers) + PORTION_REQUESTS]
            answers += answer(portion, disable_tqdm=True)
            self.on_requests(len(answers), len(requests))
        return answers

    def _check_answers(self, requests: list[Any]) -> None:
        answers = {request.args[1] for request in requests}
        tokens = max(
            len(self.lm.tok_encode(answer, add_special_tokens=False))
            if len(answer.encode()) > self.lm.max_length  # a token takes at least one byte
            else 0
            for answer in answers
        )
        if tokens > self.lm.max_length:
            raise InputError(
                f"task {requests[0].task_name} has an answer of {tokens} tokens, and prompt and "
                f"answer are to take {self.lm.max_length} at most: raise --max-tokens as far as "
                "the models go, or leave that item out"
            )
