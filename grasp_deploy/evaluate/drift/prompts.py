"""Prompts as a model is asked them: by its chat template, or as they are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from transformers import PreTrainedTokenizerBase

from grasp_deploy.data import evaluation_source
from grasp_deploy.data.blocks import read_documents
from grasp_deploy.data.bounded import Reply, bounded
from grasp_deploy.data.tokenizing import readable_failures
from grasp_deploy.errors import InputError


def read_prompts(
    tokenizer: PreTrainedTokenizerBase, text: str, column: str | None
) -> list[list[int]]:
    """Token ids of each document of `TEXT[@SPLIT]`, with the tokens that begin a text.

    Where the tokenizer has a chat template, each document is a user's message. Raises InputError
    as `read_documents` does, for a template that refuses, and if no document has a token.
    """
    source = evaluation_source(text, column=column, option="--prompts", evaluates=False)
    documents = read_documents(replace(source, name=None))
    is_chat = tokenizer.chat_template is not None
    if is_chat:
        documents = _asked(tokenizer, documents)
    with readable_failures():
        ids = tokenizer(documents, add_special_tokens=not is_chat, verbose=False)["input_ids"]
    prompts = [list(prompt) for prompt in ids if prompt]
    if not prompts:
        raise InputError(f"--prompts {text} holds no document with a token: give other prompts")
    return prompts


def _asked(tokenizer: PreTrainedTokenizerBase, documents: list[str]) -> list[str]:
    """The documents as users' messages that await an answer."""
    asked = []
    with bounded(partial(_written, tokenizer)) as ask:  # a template is a stranger's program
        for document in documents:
            reply = ask(document)
            if "text" not in reply:
                raise InputError(
                    f"--prompts: the chat template of the model's tokenizer refuses "
                    f"{document!r:.60} ({reply['refusal']}): change that prompt"
                )
            asked.append(str(reply["text"]))
    return asked


def _written(tokenizer: PreTrainedTokenizerBase, document: str) -> Reply:
    messages = [{"role": "user", "content": document}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return {"text": str(text)}
