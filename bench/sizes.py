"""The sizes at which both programs are measured, and the arithmetic of a step. Nothing to run here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A model and its batch: L layers, C channels, context T, vocabulary V."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    batch_size: int
    dropout: float = 0.0
    vocab_size: int = 65  # tinyshakespeare's characters
    steps: int = 300  # of a measurement: enough for a steady median, and over in a minute or so

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch_size * self.block_size

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of the model's own matrix products, forward and backward, for one token:

            6·N + 12·L·C·T,    N = 12·L·C² + V·C

        N: weights that take part in matrix products, that is those of the blocks and of the head; 2
        operations each in the forward and 4 in the backward. 12·L·C·T: of q kᵀ and of its product with v, the
        part above the diagonal counted, too. This is nanoGPT's ``estimate_mfu``, which has it from PaLM's
        appendix B (Chowdhery et al. 2022, arXiv 2204.02311); there N is all parameters.
        """
        n = 12 * self.n_layer * self.n_embd**2 + self.vocab_size * self.n_embd
        return 6 * n + 12 * self.n_layer * self.n_embd * self.block_size

    def overrides(self) -> list[str]:
        """For our train.py."""
        return [
            f"model.n_layer={self.n_layer}",
            f"model.n_head={self.n_head}",
            f"model.n_embd={self.n_embd}",
            f"model.block_size={self.block_size}",
            f"model.dropout={self.dropout}",
            f"train.batch_size={self.batch_size}",
        ]

    def flags(self) -> list[str]:
        """For the peer's train.py."""
        return [
            f"--n_layer={self.n_layer}",
            f"--n_head={self.n_head}",
            f"--n_embd={self.n_embd}",
            f"--block_size={self.block_size}",
            f"--dropout={float(self.dropout)}",
            f"--batch_size={self.batch_size}",
        ]


NANO = Size(4, 4, 128, 64, 32)  # our default run: conf/model/nano.yaml, conf/config.yaml
CPU = Size(4, 4, 128, 64, 12, steps=400)  # nanoGPT's recipe for a CPU, in its README
MID = Size(4, 4, 256, 128, 12, steps=120)
BABY = Size(6, 6, 384, 256, 64, dropout=0.2, steps=9)  # config/train_shakespeare_char.py; seconds a step
GPT2 = Size(
    12, 12, 768, 1024, 12, vocab_size=50_304, steps=60
)  # 124 M parameters; nanoGPT's padded vocabulary
SIZES = {"nano": NANO, "cpu": CPU, "mid": MID, "baby": BABY, "gpt2": GPT2}
