"""The second stage: the tokenizers and the CLIP and T5 encoders, trained on captions alone.

FLUX gives text tokens no position, so its transformer cannot learn by itself which colour belongs to which shape: the
encoders must say so in every token. Heads, thrown away afterwards, predict from each T5 token the thing that it
belongs to and the place of that thing, and from CLIP's pooled output what stands at each place.

The pipeline does not mask padding. T5 is therefore trained with varied padding to give the same embeddings under any
padding, and one fixed embedding to padding itself.
"""

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase

import torch
from torch import nn
from torch.nn import functional
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from dovetail.demo.draw import COLOURS, OPPOSITE, PLACES, SHAPES, described, training_scene
from dovetail.demo.loop import Recipe, Stage, rounded

RECIPE = Recipe("text", steps=1100, rate=1e-3)
WIDTH = 128
CLIP_LENGTH = 16
T5_LENGTH = 12
LENGTHS = (12, 12, 12, 12, 16, 24, 48, 96, 160, 300, 512)

_BATCH = 128
_LONG_TOKENS = 4096
_EMPTY_SHARE = 0.05
_SMALL = ("a", "an", "to", "the")
_END = "</w>"
_SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<|pad|>")
_COLOUR_AT = {colour: index for index, colour in enumerate(COLOURS)}


class Encoders(nn.Module):
    """The two text encoders, with their tokenizers."""

    def __init__(self) -> None:
        super().__init__()
        self.clip_tokenizer, self.t5_tokenizer = clip_tokenizer(), t5_tokenizer()
        self.clip = CLIPTextModel(_clip_config(self.clip_tokenizer))
        self.t5 = T5EncoderModel(_t5_config(self.t5_tokenizer))

    def pooled(self, captions: Sequence[str]) -> torch.Tensor:
        """Return CLIP's pooled embeddings, shape (captions, 128)."""
        ids = _ids(self.clip_tokenizer, captions, CLIP_LENGTH)
        return self.clip(ids).pooler_output  # type: ignore[no-any-return]

    def tokens(self, captions: Sequence[str], length: int = T5_LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
        """Return T5's ids, shape (captions, length), and their embeddings, shape (captions, length, 128)."""
        ids = _ids(self.t5_tokenizer, captions, length)
        return ids, self.t5(ids)[0]


class _Heads(nn.Module):
    """The encoders under training, with what is thrown away afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.encoders = Encoders()
        self.token = nn.Linear(WIDTH, len(COLOURS) + len(SHAPES) + len(PLACES))
        self.whole = nn.Linear(WIDTH, len(PLACES) * (len(COLOURS) + len(SHAPES) + 2))
        self.padding = nn.Parameter(torch.randn(WIDTH))


def clip_tokenizer() -> CLIPTokenizer:
    """Make a byte-pair tokenizer that knows each word of the captions as one token, and every letter."""
    letters = [letter + end for end in ("", _END) for letter in ascii_lowercase]
    merges = _merges([word.lower() for word in _words()])
    known = dict.fromkeys([*_SPECIAL, *letters, *("".join(merge) for merge in merges)])
    vocab = {token: index for index, token in enumerate(known)}
    return CLIPTokenizer(vocab=vocab, merges=merges, pad_token=_SPECIAL[2], model_max_length=CLIP_LENGTH)


def _merges(words: Sequence[str]) -> list[tuple[str, str]]:
    """Find the merges that make each word one token, ties settled by the alphabet (by chance in `tokenizers`)."""
    spelled = [[*word[:-1], word[-1] + _END] for word in words]
    merges: list[tuple[str, str]] = []
    while counts := Counter(pair for parts in spelled for pair in pairwise(parts)):
        merges.append(min(counts, key=lambda pair: (-counts[pair], pair)))
        spelled = [_merged(parts, merges[-1]) for parts in spelled]
    return merges


def _merged(parts: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _words() -> list[str]:
    return sorted(
        {word for entry in (*COLOURS, *SHAPES, *OPPOSITE, *OPPOSITE.values(), *_SMALL) for word in entry.split()}
    )


def t5_tokenizer() -> T5Tokenizer:
    """Make a unigram tokenizer whose pieces are the words of the captions."""
    pieces = [f"▁{word}" for word in ("A", "An", *_words())]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -10.0), *((piece, -1.0) for piece in pieces)]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512)


def _clip_config(tokenizer: CLIPTokenizer) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CLIP_LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,  # CLIP pools at the first of these; with the default it pools at random
        pad_token_id=tokenizer.pad_token_id,
    )


def _t5_config(tokenizer: T5Tokenizer) -> T5Config:
    return T5Config(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        d_kv=WIDTH // 4,
        d_ff=2 * WIDTH,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        is_encoder_decoder=False,
        use_cache=False,
    )


def _ids(tokenizer: CLIPTokenizer | T5Tokenizer, captions: Sequence[str], length: int) -> torch.Tensor:
    batch = tokenizer(list(captions), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    return batch.input_ids  # type: ignore[no-any-return]


def train(work: Path) -> Encoders:
    """Train both encoders on captions alone."""
    torch.manual_seed(1)
    heads = _Heads()
    Stage(heads, RECIPE, work).run(partial(_loss, heads))
    rounded(heads.encoders)
    return heads.encoders


def _loss(heads: _Heads, step: int, generator: torch.Generator) -> torch.Tensor:
    lot = random.Random(step)
    length = lot.choice(LENGTHS)
    captions = [_caption(lot) for _ in range(min(_BATCH, _LONG_TOKENS // length))]
    ids, tokens = heads.encoders.tokens(captions, length)
    loss = _token_loss(heads, captions, tokens) + _whole_loss(heads, captions) + _padding_loss(heads, ids, tokens)
    return loss if length == T5_LENGTH else loss + _invariance_loss(heads, captions, tokens)


def _caption(lot: random.Random) -> str:
    return "" if lot.random() < _EMPTY_SHARE else lot.choice(training_scene(lot).phrasings())


def _token_loss(heads: _Heads, captions: Sequence[str], tokens: torch.Tensor) -> torch.Tensor:
    """Article, colour and shape of a thing each tell the colour, the shape and the place of that thing."""
    rows, columns, facts = [], [], []
    for row, caption in enumerate(captions):
        for start, thing, place in described(caption):
            rows += [row] * 3
            columns += [start, start + 1, start + 2]
            facts += [(_COLOUR_AT[thing.colour], SHAPES.index(thing.shape), PLACES.index(place))] * 3
    parts = heads.token(tokens[rows, columns]).split([len(COLOURS), len(SHAPES), len(PLACES)], dim=-1)
    return _cross_entropies(parts, torch.tensor(facts).unbind(dim=1))


def _whole_loss(heads: _Heads, captions: Sequence[str]) -> torch.Tensor:
    """CLIP's pooled output tells the colour and the shape at each place, the last class standing for nothing."""
    facts = torch.tensor([len(COLOURS), len(SHAPES)]).repeat(len(captions), len(PLACES), 1)
    for row, caption in enumerate(captions):
        for _, thing, place in described(caption):
            facts[row, PLACES.index(place)] = torch.tensor([_COLOUR_AT[thing.colour], SHAPES.index(thing.shape)])
    logits = heads.whole(heads.encoders.pooled(captions)).unflatten(-1, (len(PLACES), -1))
    parts = logits.split([len(COLOURS) + 1, len(SHAPES) + 1], dim=-1)
    return _cross_entropies([part.flatten(0, 1) for part in parts], facts.flatten(0, 1).unbind(dim=1))


def _cross_entropies(parts: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([functional.cross_entropy(p, w) for p, w in zip(parts, wanted, strict=True)]).sum()


def _padding_loss(heads: _Heads, ids: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    padding = tokens[ids == heads.encoders.t5_tokenizer.pad_token_id]
    return functional.mse_loss(padding, heads.padding.expand_as(padding))


def _invariance_loss(heads: _Heads, captions: Sequence[str], tokens: torch.Tensor) -> torch.Tensor:
    _, short = heads.encoders.tokens(captions)
    return functional.mse_loss(tokens[:, :T5_LENGTH], short.detach())
